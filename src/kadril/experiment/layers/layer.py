"""The base of all layers: two ways to run, and weights that are updated.

    as a module of torch        y = layer(x)                              autograd does the rest
    explicitly                  layer.fprop(x); layer.output
                                layer.bprop(error, x, epoch, momentum); layer.berror

Both compute the same: `bprop` is written out for each layer, and tests compare it with autograd.

A distributed layer is a layer with an `.input`, the `GlobalArray` that it gets views of. After
`adjust_for_dist()` its sizes are those of what this rank computes: `ifmshape` is that of the view.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kadril.experiment.backend import Backend, WeightInit
from kadril.experiment.global_array import GlobalArray
from kadril.experiment.schedules import LearningRate, looks_ahead, momentum_at, rate_at
from kadril.experiment.towers import Towers
from kadril.partition import Group

__all__ = [
    "REQUIRED",
    "BaseLayer",
    "Learned",
    "Rate",
    "WeightLayer",
    "check_given",
    "learn_together",
]

Rate = float | LearningRate | Mapping[str, Any]

# Default of an argument that has to be given, after others that need not: neon's order is kept.
REQUIRED: Any = inspect.Parameter.empty


def check_given(name: str, **values: Any) -> None:
    """Refuse arguments that were left out.

    Raises:
        TypeError: names them.
    """
    missing = [key for key, value in values.items() if value is REQUIRED]
    if missing:
        raise TypeError(f"{name} needs {', '.join(missing)}")


class BaseLayer(torch.nn.Module):
    """Base of all layers.

    Args:
        name: shown to people.
        backend: where weights are drawn from; the model gives its own where None.
        batch_size: examples in a batch; the model's where None.
        pos: place in the model, from 0; the model gives it where None.

    Attributes:
        input: what the layer gets views of where it is distributed; None otherwise.
        towers: the ranks; None where the layer is not distributed.
        output: what `fprop` made last.
        berror: the error of the input, made by `bprop`; with halos where `berror_has_halos`.
        nin: inputs per example, on this rank.
        nout: outputs per example, on this rank.
        hands_back_halos: whether `bprop` has already added the halos of `berror` to their owners.
    """

    hands_back_halos = False
    nin: int
    nout: int
    output: torch.Tensor
    berror: torch.Tensor

    def __init__(
        self,
        name: str,
        backend: Backend | None = None,
        batch_size: int | None = None,
        pos: int | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.backend = backend
        self.batch_size = batch_size
        self.pos = pos
        self.input: GlobalArray | None = None
        self.towers: Towers | None = None

    @property
    def berror_has_halos(self) -> bool:
        """Whether `berror` is of the view, so that its halos belong to other ranks."""
        return self.input is not None and not self.hands_back_halos

    def initialize(self, backend: Backend) -> None:
        """Draw weights, if there are any: the next numbers of the backend's stream."""
        self.backend = backend

    def adjust_for_dist(self) -> None:
        """Take the sizes of what this rank computes; `.input`, if any, is there already."""

    def compute(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a view, or of whole inputs; torch can differentiate it."""
        raise NotImplementedError

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs, with a graph; collective over the towers where distributed."""
        return self.compute(inputs if self.input is None else self.input.get_fprop_view(inputs))

    def fprop(self, inputs: torch.Tensor) -> torch.Tensor:
        """Make `output` of inputs as this rank computes on them, that is of a view; no graph."""
        with torch.no_grad():
            self.output = self.compute(inputs)
        return self.output

    def bprop(
        self, error: torch.Tensor, inputs: torch.Tensor, epoch: int = 0, momentum: Any = None
    ) -> None:
        """Make `berror`, and update weights; no graph.

        Args:
            error: derivative of the cost by the output.
            inputs: of `fprop`.
            epoch: number of the epoch, which schedules go by.
            momentum: see `kadril.experiment.schedules`.
        """
        raise NotImplementedError

    def local_error(self) -> torch.Tensor:
        """Return the error of this rank's inputs: `berror` with its halos given to their owners."""
        if self.berror_has_halos and self.input is not None:
            return self.input.get_bprop_view(self.berror)
        return self.berror

    @property
    def is_first(self) -> bool:
        """Whether nobody asks for the error of the inputs."""
        return self.pos == 0


class Learned(NamedTuple):
    """Updates of a layer that were not summed over ranks yet.

    Attributes:
        layer: whose.
        sharers: the ranks to sum over.
        updates: this rank's.
        epoch, momentum: of `WeightLayer.update`.
    """

    layer: WeightLayer
    sharers: Group
    updates: torch.Tensor
    epoch: int
    momentum: Any


def learn_together(collected: Sequence[Learned]) -> None:
    """Sum the updates of several layers, in one all-reduce for each group; take steps.

    Args:
        collected: in the same order on all ranks.
    """
    by_group: dict[int, list[Learned]] = {}
    for each in collected:
        by_group.setdefault(id(each.sharers), []).append(each)
    for members in by_group.values():
        flat = torch.cat([each.updates.flatten() for each in members])
        names = ", ".join(each.layer.name for each in members)
        members[0].sharers.transport.allreduce(flat, name=f"weights of {names}")
        parts = torch.split(flat, [each.updates.numel() for each in members])
        for each, part in zip(members, parts, strict=True):
            each.layer.update(part.view(each.updates.shape), each.epoch, each.momentum)


class WeightLayer(BaseLayer):
    """Base of the layers with weights.

    Args:
        name, backend, batch_size, pos: see `BaseLayer`.
        learning_rate: a number or a schedule; the model's where None.
        weight_init: how weights are drawn, see `WeightInit`.

    Attributes:
        weights: this rank's part of the matrix; None until it is drawn.
        velocity: the last step, for momentum.
        collected: where `learn` leaves its updates for the model, which sums them all at once; None
            where the layer sums its own.
        cut: for a part of the matrix, along which dim, and which rows or columns of the whole;
            None for the whole.
        whole_shape: of the whole matrix.
    """

    weights: torch.nn.Parameter | None
    velocity: torch.Tensor | None

    def __init__(
        self,
        name: str,
        backend: Backend | None = None,
        batch_size: int | None = None,
        pos: int | None = None,
        learning_rate: Rate | None = None,
        weight_init: WeightInit | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, backend, batch_size, pos)
        self.learning_rate = learning_rate
        self.weight_init = weight_init or {"type": "uniform", "low": -0.1, "high": 0.1}
        self.weights = None
        self.velocity = None
        self.collected: list[Learned] | None = None
        self.cut: tuple[int, torch.Tensor] | None = None
        self.whole_shape: tuple[int, ...] = ()

    def draw(self, shape: tuple[int, ...]) -> None:
        """Draw the whole matrix from the backend's stream, as soon as there is a backend."""
        self.whole_shape = shape
        if self.backend is not None:
            self.weights = torch.nn.Parameter(self.backend.gen_weights(shape, self.weight_init))

    def initialize(self, backend: Backend) -> None:
        """Draw the weights, where that was not done before."""
        super().initialize(backend)
        if self.weights is None and self.whole_shape:
            self.draw(self.whole_shape)

    @property
    def matrix(self) -> torch.nn.Parameter:
        """The weights.

        Raises:
            ValueError: they were not drawn yet, for want of a backend.
        """
        if self.weights is None:
            raise ValueError(
                f"{self.name} has no weights yet: it was given no backend to draw from"
            )
        return self.weights

    def keep(self, dim: int, indices: torch.Tensor) -> None:
        """Keep some rows or columns of the whole weights."""
        self.cut = (dim, indices)
        self.weights = torch.nn.Parameter(self.matrix.detach().index_select(dim, indices))
        self.velocity = None

    # ---- the whole of what ranks have parts of --------------------------------------------------

    def whole(self, mine: torch.Tensor) -> torch.Tensor:
        """Return the whole of which this rank has a part like its weights; collective."""
        if self.cut is None or self.towers is None:
            return mine.detach().clone()
        dim, indices = self.cut
        total = mine.new_zeros(self.whole_shape)
        total.index_copy_(dim, indices, mine.detach())
        self.towers.partition.transport.allreduce(total, name=f"weights of {self.name}")
        return total

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a whole matrix."""
        return whole.clone() if self.cut is None else whole.index_select(*self.cut)

    # ---- the rule -------------------------------------------------------------------------------

    def shared(self) -> torch.Tensor:
        """Return the weights for `compute`; gradients are summed over the ranks that use them."""
        return self.matrix

    @property
    def sharers(self) -> Group | None:
        """The ranks that have the same weights as this one; None where there are no others."""
        return None

    def sum_updates(self, updates: torch.Tensor) -> torch.Tensor:
        """Sum what `bprop` found, in place, over the ranks that use the same weights."""
        if self.sharers is not None:
            self.sharers.transport.allreduce(updates, name=f"weights of {self.name}")
        return updates

    def learn(self, updates: torch.Tensor, epoch: int = 0, momentum: Any = None) -> None:
        """Sum what `bprop` found over ranks, and take a step; the last thing that `bprop` does.

        During a step of a distributed model this waits until `bprop` of all layers was called: then
        there is one sum for all.
        """
        if self.collected is None or self.sharers is None:
            self.update(self.sum_updates(updates), epoch, momentum)
        else:
            self.collected.append(Learned(self, self.sharers, updates, epoch, momentum))

    def update(self, updates: torch.Tensor, epoch: int = 0, momentum: Any = None) -> None:
        """Take a step: v = m v - rate * updates, w = w + v.

        Args:
            updates: the gradient, summed over all ranks that have the same weights.
            epoch: for the schedules.
            momentum: see `kadril.experiment.schedules`.
        """
        rate = rate_at(0.0 if self.learning_rate is None else self.learning_rate, epoch)
        coefficient = momentum_at(momentum, epoch)
        with torch.no_grad():
            if coefficient == 0:
                self.matrix.sub_(rate * updates)
                return
            if self.velocity is None:
                self.velocity = torch.zeros_like(self.matrix)
            step = rate * updates
            self.velocity.mul_(coefficient).sub_(step)
            if looks_ahead(momentum):
                self.matrix.add_(coefficient * self.velocity - step)
            else:
                self.matrix.add_(self.velocity)

    def apply_gradient(self, epoch: int, momentum: Any) -> None:
        """Take a step by the gradient that autograd has found, and forget it."""
        if self.matrix.grad is not None:
            gradient, self.matrix.grad = self.matrix.grad, None
            self.update(gradient, epoch, momentum)
