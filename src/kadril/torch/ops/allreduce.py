"""All-reduce: every rank gets the reduction of what all ranks give.

    y_r = postscale * reduce_s(prescale * x_s)                     for every rank r

Backward, with g_r the gradient of y_r:

    Sum, Average                the same operation on g, with the same factors
    Min, Max, Product, Adasum   the derivative of y, see nonlinear.py

The backward pass of Sum and Average is linear again, and its own backward pass the same operation;
those of the others are differentiated by their formula. See `kadril.torch.ops` for the convention.
"""

from __future__ import annotations

from typing import Any

import torch

from kadril._native import Completion
from kadril.engine import Verb
from kadril.engine.request import allreduce_operation
from kadril.shared_engine.handles import Finish, keep, synchronize
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.shared_engine.reduce_ops import LINEAR, choose_op
from kadril.torch.compression import Compression
from kadril.torch.ops.staging import conductor_of, put_back, staged

__all__ = ["AllReduce", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "run"]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an all-reduce and give its handle; `synchronize` gives a tensor of its own.

    Args:
        tensor: of the same shape and dtype on all ranks; any layout.
        average: deprecated, use `op`.
        name: what ranks know the operation by; without one it is the n-th un-named.
        op: Average (default), Sum, Adasum, Min, Max or Product. The mean of integers is truncated
            toward zero.
        prescale_factor: applied to every rank's values; to integers in float64, truncated.
        postscale_factor: applied to the result, likewise.
        process_set: the ranks that take part.

    Raises:
        ValueError: the name is in use, the op makes no sense, or this rank is not in the set.
        UnsupportedError: no such op for this dtype.
    """
    op = choose_op(op, average)
    conductor = conductor_of(process_set)
    source = staged(tensor)
    target = torch.empty_like(source, memory_format=torch.contiguous_format)
    completion = conductor.submit(
        Verb.ALLREDUCE,
        source,
        target,
        name=name,
        reduction=op,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    if tensor.is_cpu:
        return keep(conductor, completion, target, source)
    return keep(conductor, completion, Finish(lambda _: target.to(tensor.device)), source)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an all-reduce in place and give its handle. See `allreduce_async`."""
    op = choose_op(op, average)
    conductor = conductor_of(process_set)
    if name is not None:
        # The common case in one call; anything else gives something other than a completion.
        operation = allreduce_operation(op, prescale_factor, postscale_factor)
        completion = conductor.native.submit(operation, tensor, None, name)
        if type(completion) is Completion:
            return keep(conductor, completion, tensor)
    memory = staged(tensor)
    completion = conductor.submit(
        Verb.ALLREDUCE,
        memory,
        name=name,
        reduction=op,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    return keep(conductor, completion, Finish(lambda _: put_back(tensor, memory)), memory)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """All-reduce in place and give the tensor. Not differentiable. See `allreduce_async`."""
    op = choose_op(op, average)
    handle = allreduce_async_(
        tensor, None, name, op, prescale_factor, postscale_factor, process_set
    )
    result: torch.Tensor = synchronize(handle)
    return result


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """All-reduce, differentiable. See `allreduce_async`.

    With `compression`, e.g. `Compression.fp16`, values travel in another dtype.
    """
    op = choose_op(op, average)
    compressed, context = compression.compress(tensor)
    result = AllReduce.apply(  # type: ignore[no-untyped-call]
        compressed, name, op, prescale_factor, postscale_factor, process_set
    )
    decompressed: torch.Tensor = compression.decompress(result, context)
    return decompressed


class AllReduce(torch.autograd.Function):
    """The differentiable all-reduce."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Reduce, and remember what backward needs."""
        ctx.arguments = (op, prescale, postscale, process_set)
        result: torch.Tensor = synchronize(
            allreduce_async(tensor, None, name, op, prescale, postscale, process_set)
        )
        if op not in LINEAR:
            ctx.save_for_backward(tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of the arguments; only the tensor has one."""
        (gradient,) = gradients
        op, prescale, postscale, process_set = ctx.arguments
        if op in LINEAR:
            result = AllReduce.apply(  # type: ignore[no-untyped-call]
                gradient, None, op, prescale, postscale, process_set
            )
        else:
            from kadril.torch.ops.nonlinear import gradients_of  # made of this operation

            (result,) = gradients_of(
                ctx.saved_tensors, [gradient], op, (prescale, postscale), process_set
            )
        return result, None, None, None, None, None


def run(
    tensor: torch.Tensor, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> torch.Tensor:
    """An un-named all-reduce without autograd."""
    result: torch.Tensor = synchronize(
        allreduce_async(tensor, None, None, op, prescale, postscale, process_set)
    )
    return result
