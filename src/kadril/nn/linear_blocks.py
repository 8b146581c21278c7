"""Blocks of a weight matrix on workers, and the movements of vectors through them.

    P_x = 1 x in          P_w = out x in             P_y = 1 x out

                          +---------+---------+
      x_0   x_1           | w_00    | w_01    |      y_0 = w_00 x_0 + w_01 x_1
                          +---------+---------+
      given down          | w_10    | w_11    |      y_1 = w_10 x_0 + w_11 x_1
      the columns         +---------+---------+      added up along the rows

    y_o = b_o + sum_i w_oi x_i          x*_i = sum_o w_oi^T y*_o          w*_oi = y*_o x_i^T

The broadcast of x has the sum over o as its adjoint, the sum over i the broadcast of y*. Leading
axes (a batch that is split) are the same in all three partitions; along them workers have copies of
w_oi, whose gradients are summed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from kadril import ops
from kadril.nn.sharing import refuse_data
from kadril.nn.split_state import SplitWeight
from kadril.nn.weight_dtype import agree_with_parameters
from kadril.ops.structure import Structure
from kadril.partition import Interval, Partition, balanced_intervals
from kadril.partition.pairing import text

__all__ = ["LinearBlocks", "first_along_last_axis"]


class LinearBlocks:
    """Blocks of x, w and y on their workers. Making one is collective over the world.

    Args:
        P_x: ... x in; one axis for each dim of the input.
        P_y: ... x out.
        P_w: ... x out x in; axes of size 1 before the last two may be left out.
        in_features: of the whole input.
        out_features: of the whole output.
        has_bias: whether there is a bias; the first column of workers holds it.
        what: name of the layer in errors.

    Raises:
        ValueError: the partitions do not match each other, or there are fewer features than
            workers along an axis; on all ranks.
    """

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        P_w: Partition,
        in_features: int,
        out_features: int,
        has_bias: bool,
        what: str,
    ) -> None:
        self.P_x = P_x
        self.P_y = P_y
        self.in_features = in_features
        self.what = what
        num_lead = self._check(P_x, P_y, P_w)
        num_in, num_out = P_x.shape[-1], P_y.shape[-1]
        for name, size, length in (
            ("in_features", in_features, num_in),
            ("out_features", out_features, num_out),
        ):
            if size < length:
                raise ValueError(
                    f"{what}: {name}={size} are too few for {length} workers along the last axis"
                )
        self.inputs = balanced_intervals(in_features, num_in)
        outputs = balanced_intervals(out_features, num_out)
        senders = P_x.create_cartesian_topology_partition([num_lead, 1, num_in])
        self.workers = P_w.create_cartesian_topology_partition([num_lead, num_out, num_in])
        receivers = P_y.create_cartesian_topology_partition([num_lead, num_out, 1])
        self.everyone = P_x.create_partition_union(P_w).create_partition_union(P_y)
        self.broadcaster = ops.Broadcaster(senders, self.workers, what=f"input of {what}")
        self.reducer = ops.SumReducer(self.workers, receivers, what=f"output of {what}")
        needs = [*[None] * (P_x.dim - 1), lambda blocks: self.inputs]
        self.balancer = ops.HaloExchanger(P_x, needs, what=f"input of {what}")
        self.split = SplitWeight(
            self.workers, outputs, self.inputs, (out_features, in_features), has_bias
        )
        self.copies = self.workers.axis_group([0]) if self.workers.active else None

    def _check(self, P_x: Partition, P_y: Partition, P_w: Partition) -> int:
        """Check that the partitions match; return the number of workers along all leading axes."""
        lead = P_x.shape[:-1]
        if P_y.shape[:-1] != lead:
            raise ValueError(
                f"{self.what}: P_x = {text(P_x.shape)} and P_y = {text(P_y.shape)} may differ in"
                " the last axis, the features, only"
            )
        wanted = (*lead, P_y.shape[-1], P_x.shape[-1])
        if without_ones(P_w.shape) != without_ones(wanted) or P_w.shape[-2:] != wanted[-2:]:
            raise ValueError(
                f"{self.what}: P_x = {text(P_x.shape)} and P_y = {text(P_y.shape)} need P_w ="
                f" {text(wanted)}, output features before input features; got {text(P_w.shape)}"
            )
        return math.prod(lead)

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute y = W x + b; collective over the workers of all three partitions.

        Args:
            x: block of the input on `P_x`.
            weight: this worker's block of the weight.
            bias: this worker's block of the bias.

        Raises:
            ValueError: the input does not have `in_features` features; on all workers.
            TypeError: it has another dtype than the parameters; on all workers.
        """
        if not self.everyone.active:
            refuse_data(x, self.what)
            return x.clone()
        structure = agree_with_parameters(
            self.everyone, x, weight, bias, self.what, owners=self.P_x
        )
        is_balanced = self._check_features(structure)
        if self.copies is not None:
            weight, bias = (
                None
                if each is None
                else ops.spread(each, self.copies, what=f"{name} of {self.what}")
                for name, each in (("weight", weight), ("bias", bias))
            )
        if self.P_x.active and not is_balanced:
            x = self.balancer.exchange(x, structure)
        x = self.broadcaster(x)
        if weight is not None:
            x = functional.linear(x, weight, bias)
        return self.reducer(x)

    def _check_features(self, structure: Structure) -> bool:
        """Check the features of x; return whether it is split as the weight is."""
        blocks: list[Interval] = structure.blocks(self.what)[-1]
        if blocks[-1].stop != self.in_features:
            raise ValueError(
                f"{self.what}: the input has {blocks[-1].stop} features in its last dim, along the"
                f" last axis of {text(self.P_x.shape)}; the layer has {self.in_features}"
            )
        return blocks == self.inputs


def without_ones(shape: Sequence[int]) -> list[int]:
    """Return the leading axes that are longer than 1, and the last two axes."""
    return [length for length in shape[:-2] if length > 1] + list(shape[-2:])


def first_along_last_axis(P: Partition) -> Partition:
    """Return the workers at the first position along the last axis, which gets length 1."""
    length = P.shape[-1]
    some = P.create_partition_inclusive(range(0, P.size, length))
    return some.create_cartesian_topology_partition([*P.shape[:-1], 1])
