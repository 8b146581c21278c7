"""Local filtering: filters that are not shared between positions, and the way back.

    y[p] = W[p] x[field p]          x* = sum_p W[p]^T y*[p] on field p          W*[p] = y*[p] x^T

The de-filtering layer does the same in the other direction, with the same weights (tied) or a copy
of them. Each row of the weights is one filter at one position, of length 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kadril import ops
from kadril.experiment.backend import Backend, WeightInit
from kadril.experiment.layers.layer import REQUIRED, Rate, WeightLayer
from kadril.experiment.layers.local_layer import LocalLayer, ViewLayerDist
from kadril.experiment.layers.pooling import PoolingLayer
from kadril.experiment.layers.unshared_filters import (
    UnsharedFilters,
    images_of_rows,
    rows_of_images,
    rows_of_values,
    values_of_rows,
)
from kadril.experiment.transforms import Cost
from kadril.partition import Group

__all__ = ["LocalDeFilteringLayer", "LocalFilteringLayer", "LocalFilteringLayerDist"]


class LocalFilteringLayer(LocalLayer, WeightLayer):
    """Filters that are not shared, which can learn to reconstruct their input.

    Args:
        name, backend, batch_size, pos, learning_rate, weight_init: see `WeightLayer`.
        nifm: channels of the input.
        nofm: filters at each position.
        ifmshape: rows and columns of the input.
        fshape: rows and columns of a filter.
        stride: from one position to the next.
        pretraining: whether the layer is trained to reconstruct its input first.
        pretrain_learning_rate: learning rate while the layer is pretrained.
        sparsity: weight of the sum of the pooled outputs in the cost of that.
        tied_weights: whether the reconstruction uses the same filters.

    Attributes:
        weights: a row for each filter, position by position within filter by filter; on a rank,
            those of its own outputs.
        defilter: the way back, while pretraining.
    """

    defilter: LocalDeFilteringLayer | None
    pooling: PoolingLayer | None

    def __init__(
        self,
        name: str,
        backend: Backend | None = None,
        batch_size: int | None = None,
        pos: int | None = None,
        learning_rate: Rate | None = None,
        nifm: int = REQUIRED,
        nofm: int = REQUIRED,
        ifmshape: Sequence[int] = REQUIRED,
        fshape: Sequence[int] = REQUIRED,
        stride: int = 1,
        weight_init: WeightInit | Mapping[str, Any] | None = None,
        pretraining: bool = False,
        pretrain_learning_rate: float | None = None,
        sparsity: float | None = None,
        tied_weights: bool | None = None,
    ) -> None:
        super().__init__(name, backend, batch_size, pos, learning_rate, weight_init)
        self.set_sizes(nifm, nofm, ifmshape, fshape, stride)
        self.pretraining = pretraining
        self.pretrain_learning_rate = pretrain_learning_rate
        self.sparsity = sparsity
        self.tied_weights = tied_weights
        self.defilter = None
        self.pooling = None
        self.is_pretraining = False
        self.draw((self.nout, self.fsize))

    def draw(self, shape: tuple[int, ...]) -> None:
        """Draw the whole matrix, as soon as there is a backend, and give its rows the length 1."""
        super().draw(shape)
        if self.weights is not None:
            normalize_rows(self.weights)

    # ---- the filters ----------------------------------------------------------------------------

    @property
    def products(self) -> UnsharedFilters:
        """The products of this rank's filters with fields, without a graph."""
        return UnsharedFilters(self.nifm, self.nofm, self.ofmshape, self.fshape, self.stride)

    def as_image(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs as `products` takes them."""
        return images_of_rows(inputs, (self.nifm, *self.ifmshape))

    def as_values(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return outputs as `products` takes them."""
        return values_of_rows(outputs, self.nofm, self.ofmshape)

    def compute(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what each position's filters give."""
        if torch.is_grad_enabled():
            return self.with_graph(inputs)
        return rows_of_values(self.products.multiply(self.matrix, self.as_image(inputs)))

    def with_graph(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the same by operations that torch can differentiate, on all fields at once."""
        maps = self.as_image(inputs)
        for dim, size in zip((1, 2), self.fshape, strict=True):
            maps = maps.unfold(dim, size, self.stride)  # channels, rows, columns, batch, field
        fields = maps.permute(1, 2, 0, 4, 5, 3).reshape(self.ofmsize, self.fsize, len(inputs))
        filters = self.shared().view(self.nofm, self.ofmsize, self.fsize).transpose(0, 1)
        return torch.bmm(filters, fields).permute(2, 1, 0).flatten(1)

    def bprop(
        self, error: torch.Tensor, inputs: torch.Tensor, epoch: int = 0, momentum: Any = None
    ) -> None:
        """Make `berror`, and update the filters, which keep the length 1."""
        with torch.no_grad():
            values = self.as_values(error)
            if not self.is_first:
                back = self.products.multiply_back(self.matrix, values, self.ifmshape)
                self.berror = rows_of_images(back)
            updates = self.products.gradient(values, self.as_image(inputs))
            self.learn(updates, epoch, momentum)

    def update(self, updates: torch.Tensor, epoch: int = 0, momentum: Any = None) -> None:
        """Take a step, and make filters of length 1 again."""
        if self.is_pretraining:
            take_step(self.matrix, updates, self.pretrain_learning_rate)
        else:
            super().update(updates, epoch, momentum)
        normalize_rows(self.matrix)

    # ---- pretraining ----------------------------------------------------------------------------

    def pretrain_mode(self, pooling: PoolingLayer) -> None:
        """Learn at the rate of pretraining, and get a way back; `pooling` follows this layer."""
        self.is_pretraining = True
        self.pooling = pooling
        if self.defilter is None or self.tied_weights:
            self.defilter = LocalDeFilteringLayer(self, bool(self.tied_weights))

    def train_mode(self) -> None:
        """Learn at the usual rate again."""
        self.is_pretraining = False

    def reconstruct(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the reconstruction of this rank's pixels, and the same as `fprop` sees it."""
        if self.defilter is None:
            raise ValueError(f"{self.name} has no way back: call pretrain_mode() first")
        output = self.defilter.fprop(values)
        return output, output

    def seen(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return this rank's inputs as the filters see them."""
        return inputs

    def pretrain(
        self, inputs: torch.Tensor, cost: Cost, epoch: int = 0, batch_size: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step towards a sparse code of which the input can be reconstructed.

        Args:
            inputs: this rank's block.
            cost: of the reconstruction.
            epoch: number of the epoch, which schedules go by.
            batch_size: of all groups of towers together; that of the inputs where None.

        Returns:
            The cost of the reconstruction of this rank's pixels, and that of the sparsity of its
            outputs.
        """
        if self.defilter is None or self.pooling is None:
            raise ValueError(f"{self.name} is not pretrained: call pretrain_mode() first")
        number = batch_size or len(inputs)
        with torch.no_grad():
            seen = self.seen(inputs)
            image = self.as_image(seen)
            values = self.products.multiply(self.matrix, image)
            code = self.output = rows_of_values(values)
            rebuilt, rebuilt_seen = self.reconstruct(values)
            self.pooling.fprop(code)
            rate = self.sparsity or 0.0
            costs = cost.apply_function(rebuilt, inputs), rate * self.pooling.output.sum()
            error = cost.apply_derivative(rebuilt_seen, seen) / number
            self.defilter.bprop(error, values)
            self.pooling.bprop(torch.full_like(self.pooling.output, rate / number), code, epoch)
            # The layers below stay as they are: nobody asks for the error of the input.
            total = self.defilter.berror + self.pooling.local_error()
            updates = self.products.gradient(self.as_values(total), image)
            self.update(self.sum_updates(updates), epoch)
        return costs


class LocalDeFilteringLayer:
    """The way back from the outputs of a local filtering layer to its inputs.

    Args:
        prev: layer before this one.
        tied_weights: whether to use its weights, or a copy of them.
    """

    output: torch.Tensor
    berror: torch.Tensor

    def __init__(self, prev: LocalFilteringLayer, tied_weights: bool) -> None:
        self.prev = prev
        self.weights = prev.matrix if tied_weights else prev.matrix.detach().clone()

    def fprop(self, values: torch.Tensor) -> torch.Tensor:
        """Make `output`: the sum over positions of W[p]^T y[p], where they lie.

        Args:
            values: what the layer gave, as `LocalFilteringLayer.as_values` has it.
        """
        prev = self.prev
        back = prev.products.multiply_back(self.weights.detach(), values, prev.ifmshape)
        self.output = rows_of_images(back)
        return self.output

    def bprop(self, error: torch.Tensor, values: torch.Tensor) -> None:
        """Make `berror`, and update the weights.

        Args:
            error: of the output, as `fprop` made it.
            values: of `fprop`.
        """
        prev = self.prev
        back, found = prev.products.multiply_with_gradient(
            self.weights.detach(), prev.as_image(error), values
        )
        self.berror = rows_of_values(back)
        take_step(self.weights, prev.sum_updates(found), prev.pretrain_learning_rate)
        normalize_rows(self.weights)


class LocalFilteringLayerDist(ViewLayerDist, LocalFilteringLayer):
    """Unshared filters, of which each rank has those of its own outputs."""

    def adjust_for_dist(self) -> None:
        """Take the sizes of the view, and keep the filters of this rank's outputs."""
        if self.input is None:
            return
        rows, columns = self.global_ofmshape
        super().adjust_for_dist()
        top, left = self.input.local_array.top_left_output
        all_rows = torch.arange(self.nofm * rows * columns).view(self.nofm, rows, columns)
        mine = all_rows[:, top : top + self.ofmheight, left : left + self.ofmwidth]
        self.keep(0, mine.flatten())

    def shared(self) -> torch.Tensor:
        """Return the filters; their gradients are summed over groups of towers."""
        if self.towers is None:
            return self.matrix
        return ops.spread(self.matrix, self.towers.across, what=f"filters of {self.name}")

    @property
    def sharers(self) -> Group | None:
        """The ranks of other groups of towers that have the same part."""
        return None if self.towers is None else self.towers.others_with_my_part

    def reconstruct(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the reconstruction: ranks add up what they have for each other's pixels."""
        chunk, _ = super().reconstruct(values)
        rebuilt = self.view.get_bprop_view(chunk)
        return rebuilt, self.view.get_fprop_view(rebuilt)

    def seen(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the view of this rank's inputs."""
        return self.view.get_fprop_view(inputs)


def normalize_rows(weights: torch.Tensor) -> None:
    """Divide each row by its Euclidean length, in place; rows of zeros stay."""
    with torch.no_grad():
        lengths = weights.norm(dim=1, keepdim=True)
        weights.div_(torch.where(lengths == 0, torch.ones_like(lengths), lengths))


def take_step(weights: torch.Tensor, updates: torch.Tensor, rate: float | None) -> None:
    """Subtract updates times a rate, in place."""
    with torch.no_grad():
        weights.sub_((rate or 0.0) * updates)
