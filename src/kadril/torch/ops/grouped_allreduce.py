"""Grouped all-reduce: several tensors as one request, served all or nothing.

    y_ir = postscale * reduce_s(prescale * x_is)                   for every tensor i and rank r

Backward is that of `allreduce`, for each tensor, with a group again where that is linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril._native import Completion
from kadril.engine import Verb
from kadril.engine.request import allreduce_operation
from kadril.shared_engine.handles import Finish, keep, synchronize
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.shared_engine.reduce_ops import LINEAR, choose_op
from kadril.torch.compression import Compression
from kadril.torch.ops.allreduce import AllReduce
from kadril.torch.ops.staging import as_tensor_list, conductor_of, put_back, staged

__all__ = [
    "GroupedAllReduce",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "reduce_all",
]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an all-reduce of a group; `synchronize` gives a tuple of tensors of its own.

    Dtypes and shapes may differ within the group, not between ranks. See `allreduce_async`.
    """
    op = choose_op(op, average)
    listed = as_tensor_list(tensors)
    conductor = conductor_of(process_set)
    sources = [staged(tensor) for tensor in listed]
    targets = [torch.empty_like(source) for source in sources]
    completion = conductor.submit(
        Verb.ALLREDUCE,
        sources,
        targets,
        name=name,
        is_group=True,
        reduction=op,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    devices = [tensor.device for tensor in listed]

    def finish(_: object) -> tuple[torch.Tensor, ...]:
        return tuple(target.to(device) for target, device in zip(targets, devices, strict=True))

    return keep(conductor, completion, Finish(finish), sources)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an all-reduce of a group in place. See `grouped_allreduce_async`."""
    op = choose_op(op, average)
    conductor = conductor_of(process_set)
    if name is not None and type(tensors) is list and tensors:
        # The common case in one call; anything else gives something other than a completion.
        operation = allreduce_operation(op, prescale_factor, postscale_factor, is_group=True)
        completion = conductor.native.submit(operation, tensors, None, name)
        if type(completion) is Completion:
            return keep(conductor, completion, tuple(tensors))
    listed = as_tensor_list(tensors)
    memories = [staged(tensor) for tensor in listed]
    completion = conductor.submit(
        Verb.ALLREDUCE,
        memories,
        name=name,
        is_group=True,
        reduction=op,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )

    def finish(_: object) -> tuple[torch.Tensor, ...]:
        return tuple(put_back(*pair) for pair in zip(listed, memories, strict=True))

    return keep(conductor, completion, Finish(finish), memories)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """All-reduce a group in place and give its tensors. See `grouped_allreduce_async`."""
    op = choose_op(op, average)
    handle = grouped_allreduce_async_(
        tensors, None, name, op, prescale_factor, postscale_factor, process_set
    )
    return list(synchronize(handle))


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """All-reduce a group, differentiable. See `grouped_allreduce_async` and `allreduce`."""
    op = choose_op(op, average)
    compressed = [compression.compress(tensor) for tensor in as_tensor_list(tensors)]
    results = GroupedAllReduce.apply(  # type: ignore[no-untyped-call]
        name, op, prescale_factor, postscale_factor, process_set, *[each[0] for each in compressed]
    )
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, compressed, strict=True)
    ]


class GroupedAllReduce(torch.autograd.Function):
    """The differentiable all-reduce of a group."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduce, and remember what backward needs."""
        ctx.arguments = (op, prescale, postscale, process_set)
        if op not in LINEAR:
            ctx.save_for_backward(*tensors)
        handle = grouped_allreduce_async(tensors, None, name, op, prescale, postscale, process_set)
        results: tuple[torch.Tensor, ...] = synchronize(handle)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of the arguments; only the tensors have one."""
        op, prescale, postscale, process_set = ctx.arguments
        results: Sequence[torch.Tensor]
        if op in LINEAR:
            results = GroupedAllReduce.apply(  # type: ignore[no-untyped-call]
                None, op, prescale, postscale, process_set, *gradients
            )
        else:
            from kadril.torch.ops.nonlinear import gradients_of  # made of this operation

            results = gradients_of(
                ctx.saved_tensors, gradients, op, (prescale, postscale), process_set
            )
        return (None, None, None, None, None, *results)


def reduce_all(
    tensors: Sequence[torch.Tensor], op: int, process_set: ProcessSet
) -> list[torch.Tensor]:
    """Differentiable un-named all-reduce of one tensor, or of several as a group."""
    if len(tensors) == 1:
        return [
            AllReduce.apply(  # type: ignore[no-untyped-call]
                tensors[0], None, op, 1.0, 1.0, process_set
            )
        ]
    return list(
        GroupedAllReduce.apply(  # type: ignore[no-untyped-call]
            None, op, 1.0, 1.0, process_set, *tensors
        )
    )
