"""All-reduce: every rank gets the reduction of what all ranks give.

    y_r = postscale * reduce_s(prescale * x_s)                     for every rank r

Backward, with g_r the gradient of y_r:

    Sum, Average, Adasum     the same operation on g, with the same factors
    Min, Max                 prescale * postscale * sum_s g_s at elements that this rank owns, zero
                             elsewhere; the lowest rank that has the extreme value owns it
    Product                  postscale * prescale * (sum_s g_s) * prod_{s != r}(prescale * x_s)
"""

from __future__ import annotations

from typing import Any

import torch

from kadril._native import Ticket
from kadril.engine import Verb
from kadril.torch.compression import Compression
from kadril.torch.handles import Finish, keep, synchronize
from kadril.torch.ops.staging import conductor_of, put_back, staged
from kadril.torch.process_sets import ProcessSet, global_process_set
from kadril.torch.reduce_ops import Max, Min, Product, Sum, choose_op

__all__ = ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "owner_mask"]


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
    ticket = conductor.submit(
        Verb.ALLREDUCE,
        source,
        target,
        name=name,
        reduction=op,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    if tensor.is_cpu:
        return keep(conductor, ticket, target, source)
    return keep(conductor, ticket, Finish(lambda _: target.to(tensor.device)), source)


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
        # The common case in one call; anything else comes back as something but a ticket.
        ticket = conductor.native.submit(
            0, name, True, tensor, None, op, -1, prescale_factor, postscale_factor, None, ""
        )
        if type(ticket) is Ticket:
            return keep(conductor, ticket, tensor)
    memory = staged(tensor)
    ticket = conductor.submit(
        Verb.ALLREDUCE,
        memory,
        name=name,
        reduction=op,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    return keep(conductor, ticket, Finish(lambda _: put_back(tensor, memory)), memory)


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
        if op in (Min, Max, Product):
            ctx.save_for_backward(tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of the arguments; only the tensor has one."""
        (gradient,) = gradients
        op, prescale, postscale, process_set = ctx.arguments
        if op in (Min, Max, Product):
            (tensor,) = ctx.saved_tensors
            share = local_share(tensor, op, prescale, process_set)
            total = run(gradient, Sum, 1.0, 1.0, process_set)
            result = total * share * (prescale * postscale)
        else:
            # Differentiable itself, for gradients of gradients.
            result = AllReduce.apply(  # type: ignore[no-untyped-call]
                gradient, None, op, prescale, postscale, process_set
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


def local_share(
    tensor: torch.Tensor, op: int, prescale: float, process_set: ProcessSet
) -> torch.Tensor:
    """How the reduction changes with each element of this rank's (scaled) tensor; collective."""
    scaled = tensor.detach() * prescale if prescale != 1.0 else tensor.detach()
    if op == Product:
        return product_of_others(scaled, process_set)
    return owner_mask(scaled, op, process_set).to(tensor.dtype)


def owner_mask(tensor: torch.Tensor, op: int, process_set: ProcessSet) -> torch.Tensor:
    """Where this rank is the lowest one that has the extreme value; collective."""
    conductor = conductor_of(process_set)
    extreme = run(tensor, op, 1.0, 1.0, process_set)
    # A NaN is the extreme value of all ranks that have one.
    has_it = (tensor == extreme) | (tensor.isnan() & extreme.isnan())
    claims = torch.where(has_it, conductor.rank, conductor.size).to(torch.int32)
    return run(claims, Min, 1.0, 1.0, process_set) == conductor.rank


def product_of_others(tensor: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """The product over all ranks but this; collective. Exact also where factors are zero."""
    from kadril.torch.ops.allgather import allgather_async

    conductor = conductor_of(process_set)
    everyone = synchronize(allgather_async(tensor[None], process_set=process_set))
    others = [rank for rank in range(conductor.size) if rank != conductor.rank]
    result = torch.ones_like(tensor)
    for rank in others:
        result *= everyone[rank]
    return result
