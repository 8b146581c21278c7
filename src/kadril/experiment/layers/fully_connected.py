"""Fully connected layers without bias.

y = f(W x)                                 each rank has the columns of W of its own inputs:
x* = W^T z*,  z* = f'(z) y*,  W* = z* x^T  z = sum over ranks of W_r x_r, and all have all of y
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from kadril import ops
from kadril.experiment.backend import Backend, WeightInit
from kadril.experiment.layers.layer import REQUIRED, Rate, WeightLayer, check_given
from kadril.experiment.transforms import Activation, Linear
from kadril.partition import Group

__all__ = ["LayerWithNoBias", "LayerWithNoBiasDist"]

# A split layer sums the error of its inputs over ranks: so many multiplications for each of them
# take about as long as that, with two ranks on shared memory.
MIN_SPLIT_OUTPUTS = 64


class LayerWithNoBias(WeightLayer):
    """A fully connected layer without bias.

    Args:
        name, backend, batch_size, pos, learning_rate, weight_init: see `WeightLayer`.
        nin: number of inputs.
        nout: number of outputs.
        activation: f; y = z where None.

    Attributes:
        weights: outputs by inputs.
        pre_act: z, of the last `fprop`.
    """

    pre_act: torch.Tensor

    def __init__(
        self,
        name: str,
        backend: Backend | None = None,
        batch_size: int | None = None,
        pos: int | None = None,
        learning_rate: Rate | None = None,
        nin: int = REQUIRED,
        nout: int = REQUIRED,
        activation: Activation | None = None,
        weight_init: WeightInit | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, backend, batch_size, pos, learning_rate, weight_init)
        check_given(name, nin=nin, nout=nout)
        if min(nin, nout) < 1:
            raise ValueError(f"{name}: nin and nout must be at least 1")
        self.nin, self.nout = nin, nout
        self.activation = activation or Linear()
        self.draw((nout, nin))

    def columns_of(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return those of the inputs that this rank has weights for; a view."""
        return inputs

    def add_up(self, products: torch.Tensor) -> torch.Tensor:
        """Return z of this rank's part of it, which may be overwritten; no graph."""
        return products

    def mine(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return those of the inputs that this rank has weights for, with a graph."""
        return inputs

    def sum_products(self, products: torch.Tensor) -> torch.Tensor:
        """Return z of this rank's part of it, with a graph."""
        return products

    def compute(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return f(W x)."""
        z = self.sum_products(functional.linear(self.mine(inputs), self.shared()))
        return self.activation.apply(z)

    def fprop(self, inputs: torch.Tensor) -> torch.Tensor:
        """Make `pre_act` and `output`."""
        with torch.no_grad():
            products = functional.linear(self.columns_of(inputs), self.matrix)
            self.pre_act = self.add_up(products)
            self.output = self.activation.apply(self.pre_act)
        return self.output

    def bprop(
        self, error: torch.Tensor, inputs: torch.Tensor, epoch: int = 0, momentum: Any = None
    ) -> None:
        """Make `berror`, and update the weights."""
        with torch.no_grad():
            delta = self.activation.pull_back(error, self.pre_act, self.output)
            if not self.is_first:
                self.berror = self.collect_error(delta @ self.matrix)
            self.learn(delta.t() @ self.columns_of(inputs), epoch, momentum)

    def collect_error(self, error: torch.Tensor) -> torch.Tensor:
        """Return the error of the inputs, of that of those this rank has weights for."""
        return error


class LayerWithNoBiasDist(LayerWithNoBias):
    """A fully connected layer of which each rank has the columns of its own inputs.

    After a layer on images these are the pixels of its part; after another fully connected layer,
    whose outputs all ranks have, a balanced share of them. A layer of few outputs after another
    fully connected one is not split at all: every rank computes it, since that takes less time than
    the two sums that a split one needs.

    Attributes:
        in_indices: the columns; the model gives them before `adjust_for_dist()`. None where every
            rank has all of them.
        share: the same columns as a slice, where ranks have all inputs and take a share of them.
    """

    in_indices: torch.Tensor | None = None
    share: slice | None = None

    @property
    def worth_splitting(self) -> bool:
        """Whether it has enough outputs that ranks gain by a share of the inputs each."""
        return self.nout >= MIN_SPLIT_OUTPUTS

    def adjust_for_dist(self) -> None:
        """Keep the columns of this rank's inputs."""
        if self.in_indices is not None:
            self.keep(1, self.in_indices)
            self.nin = len(self.in_indices)

    @property
    def tower_ranks(self) -> Group | None:
        """The ranks that have a part of the weights each; None where this one has all of them."""
        if self.towers is None or self.in_indices is None:
            return None
        return self.towers.partition.group

    def columns_of(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return this rank's columns of inputs that all ranks have; a view."""
        return inputs if self.share is None else inputs[:, self.share]

    def add_up(self, products: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks of a group, in place."""
        if self.tower_ranks is not None:
            self.tower_ranks.transport.allreduce(products, name=f"output of {self.name}")
        return products

    def mine(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return this rank's columns of inputs that all ranks have, with a graph."""
        if self.tower_ranks is None or self.share is None:
            return inputs
        return self.columns_of(ops.spread(inputs, self.tower_ranks, what=f"input of {self.name}"))

    def shared(self) -> torch.Tensor:
        """Return the weights; their gradients are summed over groups of towers."""
        if self.towers is None:
            return self.matrix
        return ops.spread(self.matrix, self.towers.across, what=f"weights of {self.name}")

    def sum_products(self, products: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks of a group, which all of them get."""
        if self.tower_ranks is None:
            return products
        return ops.total(products, self.tower_ranks, what=f"output of {self.name}")

    @property
    def sharers(self) -> Group | None:
        """The ranks of other groups of towers that have the same part."""
        return None if self.towers is None else self.towers.others_with_my_part

    def collect_error(self, error: torch.Tensor) -> torch.Tensor:
        """Return the error of all inputs where all ranks have them; of this rank's otherwise."""
        if self.tower_ranks is None or self.share is None:
            return error
        whole = error.new_zeros(len(error), self.whole_shape[1])
        whole[:, self.share] = error
        self.tower_ranks.transport.allreduce(whole, name=f"error of {self.name}")
        return whole
