"""Group normalization of a tensor whose batch, channels and space are split among workers.

    channels   | 0 1 2 | 3 4 5 |  workers         A group may lie on several workers: then they put
    groups     |0 1|2 3|4 5|      of 2 channels   their parts of its statistics together

    y[n, c, s] = weight[c] (x[n, c, s] - mean[n, g]) / sqrt(var[n, g] + eps) + bias[c]      c in g

The equations of both directions, and how far they are off, are in `norm/standardize.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kadril.nn.norm.partitioned_norm import ChannelNorm
from kadril.nn.norm.standardize import Rows
from kadril.nn.sharing import interval_here
from kadril.ops.structure import Structure
from kadril.partition import Interval, Partition
from kadril.partition.pairing import text

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DistributedGroupNorm"]


class GroupNormPlan(NamedTuple):
    """Plan for one structure of the input; computed once.

    Attributes:
        channels: that this worker has.
        num_groups: that this worker has, where they are whole here; else `rows` are used.
        rows: which rows share statistics; None where all of theirs are here.
    """

    channels: Interval
    num_groups: int
    rows: Rows | None


class DistributedGroupNorm(ChannelNorm, torch.nn.GroupNorm):
    """`torch.nn.GroupNorm` over the workers of a partition.

    Parameters are the sequential layer's, whole, on every worker; so is the `state_dict`. Channels
    may be split anywhere, also inside a group.

    | | shape on each worker |
    |---|---|
    | x, y | block of (N, C, ...) on `P_x` |
    | weight, bias | (C,) |

    Args:
        P_x: one axis for each dim of the input: batch, channels, space. Any may be split.
        num_groups: number of groups of channels.
        num_channels: C.
        eps: added to the variance.
        affine: whether there are weight and bias.
        device: of parameters.
        dtype: of parameters.
        bias: whether there is a bias, where there is a weight.
        what: name of the layer in errors.

    Raises (when called, on all workers):
        ValueError: the input does not have `num_channels` channels, or one dim for each axis of
            `P_x`.
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
        self._lie_on(P_x, what, f"{num_groups}, {num_channels}")

    @classmethod
    def of(cls, layer: torch.nn.GroupNorm, P_x: Partition, *, what: str | None = None) -> Self:
        """Return the partitioned twin of a layer, with its parameters themselves."""
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

    def _normalize(
        self, x: torch.Tensor, plan: GroupNormPlan, structure: Structure
    ) -> torch.Tensor:
        weight, bias = self._share([self.weight, self.bias], slice(*plan.channels))
        if plan.rows is None:
            # Not functional.group_norm, which refuses one value per group in a block.
            return torch.group_norm(x, plan.num_groups, weight, bias, self.eps)
        y = self._standardize(
            x.reshape(x.shape[0] * x.shape[1], math.prod(x.shape[2:])),
            None if weight is None else weight.repeat(x.shape[0]),
            None if bias is None else bias.repeat(x.shape[0]),
            plan.rows,
            eps=self.eps,
            requires_grad=structure.requires_grad,
        )
        return y.view(x.shape)

    def _plan(self, structure: Structure) -> GroupNormPlan:
        blocks = self._blocks_of_floats(structure)
        self._check_channels(blocks[1], self.num_channels)
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
            return GroupNormPlan(channels, channels.size // each, None)
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
        return GroupNormPlan(channels, num_groups, Rows(group, owner, counts.repeat(1, batch)))
