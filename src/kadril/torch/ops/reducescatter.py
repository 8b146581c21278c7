"""Reduce-scatter: the reduction of what all ranks give, cut by rows among them.

    y_r = rows_r( postscale * reduce_s(prescale * x_s) )

Where the rows do not divide evenly the first ranks get one more. Backward, with g_r the gradient of
y_r and n ranks:

    x*_r = c [g_0; g_1; ...]        c = prescale * postscale, times n for Sum

Its own backward is that of the all-gather, c times rows_r of the mean, which is this operation
again. See `kadril.torch.ops` for the convention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril._native import Completion
from kadril.engine import Verb
from kadril.errors import UnsupportedReductionError
from kadril.shared_engine.handles import Finish, keep, synchronize
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.shared_engine.reduce_ops import LINEAR, OP_NAMES, Average, Sum
from kadril.torch.compression import Compression
from kadril.torch.ops.allgather import gather_all
from kadril.torch.ops.staging import as_tensor_list, conductor_of, outputs_of, staged

__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin a reduce-scatter and give its handle.

    Args:
        tensor: with at least one dim, of the same shape and dtype on all ranks.
        name: what ranks know the operation by.
        op: Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: applied to every rank's values.
        postscale_factor: applied to the result.

    Raises:
        UnsupportedReductionError: another op.
        ValueError: a tensor without dims, the name is in use, or this rank is not in the set.
    """
    return begin(
        [tensor],
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        lambda results: results[0],
    )


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin a reduce-scatter of a group; `synchronize` gives a list. See `reducescatter_async`."""
    listed = as_tensor_list(tensors)
    return begin(
        listed, name, op, process_set, prescale_factor, postscale_factor, list, is_group=True
    )


def begin(
    tensors: list[torch.Tensor],
    name: str | None,
    op: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    finish: Any,
    *,
    is_group: bool = False,
) -> int:
    """Begin a reduce-scatter of tensors; `finish` makes the result of the list of outputs."""
    if op not in LINEAR:
        raise UnsupportedReductionError(
            f"reducescatter knows Average and Sum, not {OP_NAMES.get(op, f'op {op!r}')}; use"
            " allreduce and take this rank's rows of the result"
        )
    conductor = conductor_of(process_set)
    sources = [staged(tensor) for tensor in tensors]
    for source in sources:
        if source.dim() == 0:
            raise ValueError("reducescatter deals out rows, and a tensor without dims has none")
    completion = conductor.submit(
        Verb.REDUCESCATTER,
        sources,
        name=name,
        reduction=op,
        prescale=prescale,
        postscale=postscale,
        is_group=is_group,
    )
    devices = [tensor.device for tensor in tensors]

    def finish_completion(done: Completion) -> Any:
        return finish(outputs_of(done, devices))

    return keep(conductor, completion, Finish(finish_completion), sources)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce-scatter, differentiable. See `reducescatter_async`."""
    compressed, context = compression.compress(tensor)
    (result,) = ReduceScatter.apply(  # type: ignore[no-untyped-call]
        name, op, process_set, prescale_factor, postscale_factor, False, compressed
    )
    decompressed: torch.Tensor = compression.decompress(result, context)
    return decompressed


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce-scatter a group, differentiable. See `reducescatter_async`."""
    compressed = [compression.compress(tensor) for tensor in as_tensor_list(tensors)]
    results = ReduceScatter.apply(  # type: ignore[no-untyped-call]
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        True,
        *[each[0] for each in compressed],
    )
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, compressed, strict=True)
    ]


class ReduceScatter(torch.autograd.Function):
    """The differentiable reduce-scatter of one tensor or a group."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale: float,
        postscale: float,
        is_group: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduce and cut."""
        size = conductor_of(process_set).size
        ctx.factor = prescale * postscale * (size if op == Sum else 1)
        ctx.process_set = process_set
        handle = begin(
            list(tensors), name, op, process_set, prescale, postscale, tuple, is_group=is_group
        )
        results: tuple[torch.Tensor, ...] = synchronize(handle)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of the arguments; only the tensors have one."""
        scaled = [gradient * ctx.factor for gradient in gradients]
        results = gather_all(scaled, ctx.process_set)
        return (None, None, None, None, None, None, *results)
