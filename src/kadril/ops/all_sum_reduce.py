"""All-sum-reduce: the sum over lines of workers, on each of them.

    y_r = sum_{s in line of r} x_s            x*_r = sum_{s in line of r} y*_s        (self-adjoint)

Every worker's `y` is a result of its own: where all of them go into a loss, gradients add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kadril import _native
from kadril.ops.calling import uncompiled
from kadril.ops.linear_operator import Adjoint, apply_operator, put_in_graph, resolved
from kadril.ops.moves.shm_carrier import memory_for
from kadril.ops.structure import any_requires_grad, is_differentiable
from kadril.ops.zero_volume import nothing_of
from kadril.partition import Group, Partition
from kadril.transport.failures import to_exception
from kadril.transport.shared_memory import SharedMemory

__all__ = ["SumOperator", "all_sum_reduce", "axes_to_reduce", "sum_over"]


@uncompiled
def all_sum_reduce(
    x: torch.Tensor,
    P_x: Partition,
    axes_reduce: Sequence[int] | None = None,
    axes_keep: Sequence[int] | None = None,
    *,
    what: str = "AllSumReduce",
) -> torch.Tensor:
    """Sum over axes of a partition; collective over it.

    Args:
        x: of the same shape on all workers in line; returned as a copy on other ranks.
        P_x: the partition.
        axes_reduce: axes of the partition to sum over.
        axes_keep: all other axes of the partition, instead.
        what: name of the operation in errors.

    Returns:
        A new tensor, also where there is nothing to sum.

    Raises:
        ValueError: not exactly one of the two was given, or there is no such axis; or this rank
            has elements and is not in the partition.
        MismatchError: shapes or dtypes differ; on every worker in line.
    """
    axes = axes_to_reduce(P_x, axes_reduce, axes_keep)
    if not P_x.active:
        return nothing_of(x, P_x, what)
    return sum_over(x, P_x.axis_group(axes), what)


def sum_over(
    x: torch.Tensor, group: Group, what: str, *, requires_grad: bool | None = None
) -> torch.Tensor:
    """Sum over a group, on each of its ranks.

    Args:
        x: of the same shape on all of them.
        group: the workers whose tensors are added up.
        what: name of the operation in errors.
        requires_grad: whether any rank's `x` does, where that is known; asked otherwise.
    """
    operator = SumOperator(group, what)
    if requires_grad is not None:
        return apply_operator(operator, x, requires_grad=requires_grad)
    memory = memory_for(group.transport, x)
    if memory is not None:
        done = sum_and_ask(x, memory, what)
        if done is not None:
            y, requires_grad = done
            if requires_grad and x.requires_grad:
                return put_in_graph(x, Adjoint(operator, x.shape, x.dtype), (y,))
            return apply_operator(operator, x, requires_grad=requires_grad, done=y)
    requires_grad = any_requires_grad(x, group, what)
    return apply_operator(operator, x, requires_grad=requires_grad)


def sum_and_ask(
    x: torch.Tensor, memory: SharedMemory, what: str
) -> tuple[torch.Tensor, bool] | None:
    """Sum in new memory, and ask whether any rank's tensor requires gradients, in one call.

    Returns:
        None for tensors that the native core does not add up by itself.
    """
    is_recording = torch.is_grad_enabled() and is_differentiable(x.dtype)
    # By the name it is found out where some ranks record a graph, and others do not.
    name = f"{what}, and whether gradients are wanted" if is_recording else what
    is_plain = x.is_contiguous() and not x.is_conj() and not x.is_neg()
    source = x if is_plain else resolved(x).contiguous()
    y = torch.empty_like(source)
    asked = memory.channel.sum_tensor(source, y, is_recording and x.requires_grad, name)
    if asked is NotImplemented:
        return None
    if isinstance(asked, _native.Failure):
        raise to_exception(asked, memory.world_ranks)
    return y, asked


def axes_to_reduce(
    P_x: Partition, axes_reduce: Sequence[int] | None, axes_keep: Sequence[int] | None
) -> list[int]:
    """Return the axes that are summed over.

    Raises:
        ValueError: not exactly one of the two was given, or there is no such axis.
    """
    if (axes_reduce is None) == (axes_keep is None):
        raise ValueError("give either axes_reduce or axes_keep")
    given = axes_keep if axes_reduce is None else axes_reduce
    for axis in given or ():
        if not -P_x.dim <= axis < P_x.dim:
            raise ValueError(f"{P_x!r} has no axis {axis}")
    chosen = {axis % P_x.dim for axis in given or ()}
    return [axis for axis in range(P_x.dim) if (axis in chosen) == (axes_reduce is not None)]


def reduced(x: torch.Tensor, group: Group, what: str) -> torch.Tensor:
    """Sum over a group, in new memory."""
    x = resolved(x).contiguous()
    transport = group.transport
    if transport.size == 1:
        return x.clone()
    y = torch.empty_like(x)
    transport.allreduce(x, out=y, name=what)
    return y


class SumOperator(NamedTuple):
    """The sum, which is its own adjoint."""

    group: Group
    what: str

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y_r = sum_s x_s."""
        return reduced(x, self.group, what)

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor:
        """x*_r = sum_s y*_s."""
        return reduced(y, self.group, what)
