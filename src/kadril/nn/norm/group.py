"""Group normalization of a tensor whose batch, channels and space are cut among workers.

    channels   | 0 1 2 | 3 4 5 |  workers         A group may lie on several workers: then they put
    groups     |0 1|2 3|4 5|      of 2 channels   their parts of its statistics together

    y[n, c, s] = weight[c] (x[n, c, s] - mean[n, g]) / sqrt(var[n, g] + eps) + bias[c]      c in g

The equations of both directions, and how far they are off, are in `norm/standardize.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kadril.nn.norm.standardize import Rows, standardize, statistics_of
from kadril.nn.sharing import interval_here, refuse_data, spread_together
from kadril.ops.calling import uncompiled
from kadril.ops.structure import PlanCache, Structure, agree
from kadril.partition import Interval, Partition
from kadril.partition.pairing import text

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DistributedGroupNorm"]


class Plan(NamedTuple):
    """What follows from the structure of the input.

    Attributes:
        channels: that this worker has.
        num_groups: that this worker has, where they are whole here; else `rows` are used.
        rows: which rows share statistics; None where all of theirs are here.
    """

    channels: Interval
    num_groups: int
    rows: Rows | None


class DistributedGroupNorm(torch.nn.GroupNorm):
    """`torch.nn.GroupNorm` over the workers of a partition.

    Parameters are the sequential layer's, whole, on every worker; so is the `state_dict`. Channels
    may be cut anywhere, also inside a group.

    | | shape on each worker |
    |---|---|
    | x, y | block of (N, C, ...) on `P_x` |
    | weight, bias | (C,) |

    Args:
        P_x: one axis for each dim of the input: batch, channels, space. Any may be cut.
        num_groups: of channels.
        num_channels: C.
        eps: added to the variance.
        affine: whether there are weight and bias.
        device: of parameters.
        dtype: of parameters.
        bias: whether there is a bias, where there is a weight.
        what: name of the layer in errors.

    Raises (when called, on all workers):
        ValueError: the input has not `num_channels` channels, or not as many dims as `P_x` has
            axes.
        MismatchError: the blocks do not fit together.
        TypeError: the input is not of a floating-point dtype.
    """

    def __init__(
        self,
        P_x: Partition,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        what: str | None = None,
    ) -> None:
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)
        if not bias:
            self.bias = None  # type: ignore[assignment]
        self.P_x = P_x
        self.what = what or f"{type(self).__name__}({num_groups}, {num_channels})"
        self._plans = PlanCache()
        if P_x.dim < 2:
            raise ValueError(
                f"{self.what}: P_x has shape {text(P_x.shape)}; it needs axes for batch and"
                " channels at least"
            )

    @classmethod
    def of(cls, layer: torch.nn.GroupNorm, P_x: Partition, *, what: str | None = None) -> Self:
        """The partitioned twin of a layer, with its parameters themselves."""
        twin = cls(
            P_x,
            layer.num_groups,
            layer.num_channels,
            layer.eps,
            layer.affine,
            device="meta",
            what=what,
        )
        twin.weight, twin.bias = layer.weight, layer.bias
        return twin.train(layer.training)

    @uncompiled
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Normalize; collective over the partition. See the class."""
        if not self.P_x.active:
            refuse_data(input, self.what)
            return input.clone()
        structure = agree(self.P_x, input, self.what)
        plan = self._plans.get(structure, lambda: self._plan(structure))
        here = slice(*plan.channels)
        weight, bias = (
            None if each is None else each[here]
            for each in spread_together(
                [self.weight, self.bias], self.P_x.group, what=f"{self.what} parameters"
            )
        )
        if plan.rows is None:
            # Not functional.group_norm, which refuses one value per group in a block.
            return torch.group_norm(input, plan.num_groups, weight, bias, self.eps)
        num_rows = input.shape[0] * input.shape[1]
        matrix = input.reshape(num_rows, math.prod(input.shape[2:]))
        y = standardize(
            matrix,
            None if weight is None else weight.repeat(input.shape[0]),
            None if bias is None else bias.repeat(input.shape[0]),
            statistics_of(matrix, plan.rows, self.what),
            plan.rows,
            eps=self.eps,
            requires_grad=structure.requires_grad,
            what=self.what,
        )
        return y.view(input.shape)

    def extra_repr(self) -> str:
        """The settings, as torch shows them, and where the layer is."""
        return f"{super().extra_repr()}, P_x={text(self.P_x.shape)}"

    def _plan(self, structure: Structure) -> Plan:
        blocks = structure.blocks(self.what)
        if not structure.dtype.is_floating_point:
            raise TypeError(f"{self.what}: cannot normalize a tensor of {structure.dtype}")
        if blocks[1][-1].stop != self.num_channels:
            raise ValueError(
                f"{self.what}: the input has {blocks[1][-1].stop} channels in dim 1, along axis 1"
                f" of {text(self.P_x.shape)}; the layer has {self.num_channels}"
            )
        num_values = math.prod(block[-1].stop for block in blocks)
        if num_values == self.num_groups:
            raise ValueError(
                f"{self.what}: one value per group on all workers together cannot be normalized;"
                f" rank 0 of {text(self.P_x.shape)} has a block of shape {structure.shapes[0]}"
            )
        channels = interval_here(self.P_x, blocks, 1)
        each = self.num_channels // self.num_groups
        # Where all workers have whole groups, only those along the spatial axes share statistics.
        are_whole = all(block.start % each == 0 for block in blocks[1])
        axes = range(2 if are_whole else 1, self.P_x.dim)
        group = self.P_x.axis_group(list(axes))
        if group.transport.size == 1 and channels.size:
            return Plan(channels, channels.size // each, None)
        first = channels.start // each if are_whole else 0
        num_groups = channels.size // each if are_whole else self.num_groups
        batch = interval_here(self.P_x, blocks, 0).size
        of_channel = torch.arange(channels.start, channels.stop) // each - first
        owner = (torch.arange(batch)[:, None] * num_groups + of_channel).reshape(-1)
        counts = torch.zeros(group.transport.size, num_groups, dtype=torch.float64)
        for place, world_rank in enumerate(group.ranks):
            rank = self.P_x.ranks.index(world_rank)
            theirs = blocks[1][self.P_x.cartesian_index(rank)[1]]
            groups = torch.arange(theirs.start, theirs.stop) // each - first
            size = torch.full(groups.shape, math.prod(structure.shapes[rank][2:]))
            counts[place].index_add_(0, groups, size.double())
        return Plan(channels, num_groups, Rows(group, owner, counts.repeat(1, batch)))
