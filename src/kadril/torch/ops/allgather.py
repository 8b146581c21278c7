"""All-gather: every rank gets the rows of all ranks, in rank order.

    y_r = [x_0; x_1; ...]          rows may differ in number between ranks, not in shape

Backward, with g_r the gradient of y_r:

    x*_r = rows_r( 1/n sum_s g_s )         this rank's rows of the mean

The backward pass of that is the all-gather again. See `kadril.torch.ops` for the convention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril._native import Completion
from kadril.engine import Verb
from kadril.shared_engine.handles import Finish, keep, synchronize
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.shared_engine.reduce_ops import Average, Sum
from kadril.torch.ops.grouped_allreduce import reduce_all
from kadril.torch.ops.staging import as_tensor_list, conductor_of, outputs_of, staged

__all__ = [
    "allgather",
    "allgather_async",
    "gather_all",
    "grouped_allgather",
    "grouped_allgather_async",
    "stack_all",
]


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin an all-gather and give its handle.

    Args:
        tensor: with at least one dim; all dims but the first are alike on all ranks.
        name: what ranks know the operation by.
        process_set: the ranks that take part.

    Raises:
        ValueError: a tensor without dims, the name is in use, or this rank is not in the set.
    """
    return begin([tensor], name, process_set, lambda tensors, _: tensors[0])


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an all-gather of a group; `synchronize` gives a tuple. See `allgather_async`."""
    listed = as_tensor_list(tensors)
    return begin(listed, name, process_set, lambda results, _: tuple(results), is_group=True)


def begin(
    tensors: list[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    finish: Any,
    *,
    is_group: bool = False,
) -> int:
    """Begin an all-gather of tensors; `finish` makes the result of outputs and rows."""
    conductor = conductor_of(process_set)
    sources = [staged(tensor) for tensor in tensors]
    for source in sources:
        if source.dim() == 0:
            raise ValueError(
                "allgather concatenates rows, and a tensor without dims has none; use"
                " tensor.reshape(1)"
            )
    completion = conductor.submit(Verb.ALLGATHER, sources, name=name, is_group=is_group)
    devices = [tensor.device for tensor in tensors]

    def finish_completion(done: Completion) -> Any:
        return finish(outputs_of(done, devices), done.received_splits)

    return keep(conductor, completion, Finish(finish_completion), sources)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """All-gather, differentiable. See `allgather_async`."""
    (result,) = AllGather.apply(  # type: ignore[no-untyped-call]
        name, process_set, False, Average, tensor
    )
    gathered: torch.Tensor = result
    return gathered


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """All-gather a group, differentiable. See `allgather_async`."""
    results: tuple[torch.Tensor, ...] = AllGather.apply(  # type: ignore[no-untyped-call]
        name, process_set, True, Average, *as_tensor_list(tensors)
    )
    return results


def gather_all(
    tensors: Sequence[torch.Tensor], process_set: ProcessSet
) -> tuple[torch.Tensor, ...]:
    """Differentiable un-named all-gather of one tensor, or of several as a group."""
    results: tuple[torch.Tensor, ...] = AllGather.apply(  # type: ignore[no-untyped-call]
        None, process_set, len(tensors) > 1, Average, *tensors
    )
    return results


def stack_all(tensor: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """The tensors of all ranks along a new first dim; its backward is the exact adjoint, the sum.

    For formulas in which each rank uses the others' values.
    """
    (result,) = AllGather.apply(  # type: ignore[no-untyped-call]
        None, process_set, False, Sum, tensor[None]
    )
    everyone: torch.Tensor = result
    return everyone


class AllGather(torch.autograd.Function):
    """The differentiable all-gather of one tensor or a group."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        process_set: ProcessSet,
        is_group: bool,
        op: int,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Gather, and remember which rows are this rank's; `op` is what gradients go through."""
        handle = begin(list(tensors), name, process_set, lambda *result: result, is_group=is_group)
        results, rows = synchronize(handle)
        conductor = conductor_of(process_set)
        ranges = []
        for index, tensor in enumerate(tensors):
            own = rows[index * conductor.size : (index + 1) * conductor.size]
            ranges.append((sum(own[: conductor.rank]), tensor.shape[0]))
        ctx.arguments = (process_set, op, ranges)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of the arguments; only the tensors have one."""
        own = OwnRows.apply(*ctx.arguments, *gradients)  # type: ignore[no-untyped-call]
        return (None, None, None, None, *own)


class OwnRows(torch.autograd.Function):
    """This rank's rows of the mean, or sum, over all ranks: the backward of the all-gather."""

    @staticmethod
    def forward(
        ctx: Any,
        process_set: ProcessSet,
        op: int,
        ranges: list[tuple[int, int]],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduce, and cut by (start, length)."""
        ctx.arguments = (None, process_set, len(tensors) > 1, op)
        reduced = reduce_all(tensors, op, process_set)
        return tuple(
            each.narrow(0, start, length)
            for each, (start, length) in zip(reduced, ranges, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Gather: the sum by its exact adjoint, the mean by the convention of the family."""
        gathered = AllGather.apply(*ctx.arguments, *gradients)  # type: ignore[no-untyped-call]
        return (None, None, None, *gathered)
