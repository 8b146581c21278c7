"""Collectives that reduce: element by element over all ranks, with the same bits on each."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from kadril.collectives.memory import AnyArray, as_source, as_target, new_like
from kadril.collectives.rows import num_rows, row_size
from kadril.partition import balanced_sizes
from kadril.transport.base import Op
from kadril.transport.buffer import Array, is_tensor
from kadril.world import World, current

__all__ = ["Reduction", "allreduce", "allreduce_", "reduce", "reduce_scatter"]

Reduction: TypeAlias = Op | Literal["mean"]


def allreduce(
    x: AnyArray, op: Reduction = "sum", *, out: AnyArray | None = None, name: str = ""
) -> AnyArray:
    """Reduce the arrays of all ranks element by element; every rank gets the same bits.

    Args:
        x: of the same shape and dtype on all ranks; any strides.
        op: "sum", "mean", "product", "min", "max", "band" or "bor".
        out: memory for the result, of the shape of `x`; new memory where None. May be `x`.
        name: compared between ranks, and shown in errors.

    Returns:
        `out`, or a new array.

    Raises:
        ValueError: `x` requires a gradient; `out` has another shape; the mean of integers.
        MismatchError: ranks call differently; on all of them.
        NotInitializedError: `kadril.init()` was not called.
    """
    world = current()
    source = as_source(x, "allreduce")
    target = new_like(x, x.shape) if out is None else as_target(out, x.shape, "allreduce")
    op, scale = as_op(op, x, world)
    world.transport.allreduce(source, op, out=target, postscale=scale, name=name)
    return target


def allreduce_(x: AnyArray, op: Reduction = "sum", *, name: str = "") -> AnyArray:
    """Reduce in place; see `allreduce`. `x` has to be contiguous. Returns `x`."""
    world = current()
    as_target(x, None, "allreduce_")
    op, scale = as_op(op, x, world)
    world.transport.allreduce(x, op, postscale=scale, name=name)
    return x


def reduce(
    x: AnyArray,
    root: int = 0,
    op: Reduction = "sum",
    *,
    out: AnyArray | None = None,
    name: str = "",
) -> AnyArray | None:
    """Reduce the arrays of all ranks on one of them.

    Args:
        x: of the same shape and dtype on all ranks; any strides. It stays as it is.
        root: the rank that gets the result.
        op: see `allreduce`.
        out: memory for the result on the root; not used elsewhere.
        name: compared between ranks, and shown in errors.

    Returns:
        The result on the root, None elsewhere.

    Raises:
        ValueError, MismatchError, NotInitializedError: see `allreduce`; there is no such root.
    """
    world = current()
    source = as_source(x, "reduce")
    target = None
    if world.rank == root:
        target = new_like(x, x.shape) if out is None else as_target(out, x.shape, "reduce")
    op, scale = as_op(op, x, world)
    world.transport.reduce(source, root, op, out=target, postscale=scale, name=name)
    return target


def reduce_scatter(x: AnyArray, op: Reduction = "sum", *, name: str = "") -> AnyArray:
    """Reduce the arrays of all ranks, and give each rank its block of the rows.

    Blocks are balanced: they differ by one row at most, and the first ranks have the larger ones.

    Args:
        x: of the same shape and dtype on all ranks; any strides.
        op: see `allreduce`.
        name: compared between ranks, and shown in errors.

    Returns:
        A new array: block `rank` of the reduced rows.

    Raises:
        ValueError, MismatchError, NotInitializedError: see `allreduce`; `x` has no rows.
    """
    world = current()
    source = as_source(x, "reduce_scatter")
    sizes = balanced_sizes(num_rows(source, "reduce_scatter"), world.size)
    row = row_size(source)
    out = new_like(x, (sizes[world.rank], *source.shape[1:]))
    op, scale = as_op(op, x, world)
    counts = [size * row for size in sizes]
    world.transport.reduce_scatterv(source, out, counts, op, postscale=scale, name=name)
    return out


def as_op(op: Reduction, x: Array, world: World) -> tuple[Op, float]:
    """The op of the transport, and what its result is multiplied by.

    Raises:
        ValueError: the mean of integers.
    """
    if op != "mean":
        return op, 1.0
    is_inexact = (
        x.is_floating_point() or x.is_complex()
        if is_tensor(x)
        else np.issubdtype(x.dtype, np.inexact) or x.dtype.name == "bfloat16"
    )
    if not is_inexact:
        raise ValueError(f"the mean of {x.dtype} need not be a whole number; convert to a float")
    return "sum", 1.0 / world.size
