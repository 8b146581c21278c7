"""All-max-reduce and all-min-reduce: the extreme over lines of workers, on each of them.

    y_r = max_{s in line of r} x_s                    x*_s = sum_r y*_r     where s is the owner
                                                             0              elsewhere

The owner of an element is the worker whose value it is: the first one in line where several have
it. So gradients are those of one element, as with `torch.max`, and are not shared out. They add up
over the line, as every worker's `y` is a result of its own. A NaN is the extreme of whatever it
meets, and owned as any other.

Moved: one all-reduce, one more of the owners' numbers where gradients are wanted, and one in the
backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from kadril.ops.all_sum_reduce import axes_to_reduce, reduced
from kadril.ops.calling import uncompiled
from kadril.ops.linear_operator import apply_operator
from kadril.ops.structure import any_requires_grad
from kadril.ops.zero_volume import nothing_of
from kadril.partition import Group, Partition

__all__ = ["all_max_reduce", "all_min_reduce"]

Extreme = Literal["max", "min"]


@uncompiled
def all_max_reduce(
    x: torch.Tensor,
    P_x: Partition,
    axes_reduce: Sequence[int] | None = None,
    axes_keep: Sequence[int] | None = None,
    *,
    what: str = "AllMaxReduce",
) -> torch.Tensor:
    """Find the largest value over axes of a partition, by element; collective over it.

    Args:
        x: of the same shape on all workers in line, and of a real dtype; without elements on ranks
            that are not in the partition, which get a copy.
        P_x: the partition.
        axes_reduce: axes of the partition over which the extreme is sought.
        axes_keep: all other axes of the partition, instead.
        what: name of the operation in errors.

    Returns:
        A new tensor, also where there is nothing to compare.

    Raises:
        ValueError: not exactly one of the two was given, there is no such axis, or this rank has
            elements and is not in the partition.
        UnsupportedError: complex numbers have no order.
        MismatchError: shapes or dtypes differ; on every worker in line.
    """
    return extreme_over(x, P_x, axes_to_reduce(P_x, axes_reduce, axes_keep), "max", what)


@uncompiled
def all_min_reduce(
    x: torch.Tensor,
    P_x: Partition,
    axes_reduce: Sequence[int] | None = None,
    axes_keep: Sequence[int] | None = None,
    *,
    what: str = "AllMinReduce",
) -> torch.Tensor:
    """Find the smallest value over axes of a partition; see `all_max_reduce`."""
    return extreme_over(x, P_x, axes_to_reduce(P_x, axes_reduce, axes_keep), "min", what)


def extreme_over(
    x: torch.Tensor, P_x: Partition, axes: Sequence[int], extreme: Extreme, what: str
) -> torch.Tensor:
    """Find the extreme over axes of a partition."""
    if not P_x.active:
        return nothing_of(x, P_x, what)
    group = P_x.axis_group(axes)
    requires_grad = any_requires_grad(x, group, what)
    operator = ExtremeOperator(group, extreme, what, finds_owners=requires_grad)
    return apply_operator(operator, x, requires_grad=requires_grad)


class ExtremeOperator:
    """The extreme of one call; its derivative there is a linear operator that picks.

    Args:
        group: the line of workers.
        extreme: "max" or "min".
        what: name of the operation in errors.
        finds_owners: whether the derivative will be asked for.
    """

    def __init__(self, group: Group, extreme: Extreme, what: str, *, finds_owners: bool) -> None:
        self.group = group
        self.extreme = extreme
        self.what = what
        self.finds_owners = finds_owners
        self.tangent = PickOperator(group, what, None)

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y_r = max_s x_s."""
        x = x.contiguous()
        y = x.clone()
        if self.group.transport.size > 1:
            self.group.transport.allreduce(y, self.extreme, name=what)
            if self.finds_owners:
                is_mine = self._find_owned(x, y)
                self.tangent = PickOperator(self.group, self.what, is_mine)
        return y

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor:
        """Apply the adjoint of the derivative."""
        return self.tangent.adjoint(y, what)

    def _find_owned(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Find the elements that this rank is the first in line to have."""
        transport = self.group.transport
        has = (x == y) | (x.isnan() & y.isnan())
        owners = torch.where(has, transport.rank, transport.size).to(torch.int32)
        transport.allreduce(owners, "min", name=f"owners of {self.what}")
        return owners == transport.rank


class PickOperator(NamedTuple):
    """Operator that gives all workers in line one worker's value, for each element.

    Attributes:
        group: the line of workers.
        what: name of the operation in errors.
        is_mine: elements whose value is this worker's; all where None.
    """

    group: Group
    what: str
    is_mine: torch.Tensor | None

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y_r = x_s, with the owner s."""
        mine = x if self.is_mine is None else x.masked_fill(~self.is_mine, 0)
        return reduced(mine, self.group, what)

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor:
        """x*_s = sum_r y*_r where s is the owner, 0 elsewhere."""
        total = reduced(y, self.group, what)
        return total if self.is_mine is None else total.masked_fill_(~self.is_mine, 0)
