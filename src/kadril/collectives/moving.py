"""Collectives that move arrays as they are, and the barrier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from kadril.collectives.memory import AnyArray, as_source, as_target, new_like
from kadril.collectives.rows import agree_on_rows, as_rows, num_rows, row_size
from kadril.partition import balanced_sizes
from kadril.world import current

__all__ = ["allgather", "alltoall", "barrier", "broadcast", "broadcast_"]


def broadcast(x: AnyArray, root: int = 0, *, name: str = "") -> AnyArray:
    """Return a new array with the values of the root's, on every rank.

    Args:
        x: of the same shape and dtype on all ranks; its values count on the root only.
        root: the rank that gives its values.
        name: compared between ranks, and shown in errors.

    Raises:
        ValueError: `x` requires a gradient; there is no such root.
        MismatchError: ranks call differently; on all of them.
        NotInitializedError: `kadril.init()` was not called.
    """
    world = current()
    source = as_source(x, "broadcast")
    result = new_like(x, x.shape)
    if world.rank == root:
        cast("Any", result)[...] = source
    world.transport.broadcast(result, root, name=name)
    return result


def broadcast_(x: AnyArray, root: int = 0, *, name: str = "") -> AnyArray:
    """Overwrite `x` by the root's values; see `broadcast`. It has to be contiguous. Returns `x`."""
    world = current()
    as_target(x, None, "broadcast_")
    world.transport.broadcast(x, root, name=name)
    return x


def allgather(x: AnyArray, *, name: str = "") -> AnyArray:
    """Concatenate the rows of all ranks, in rank order, on every rank.

    Args:
        x: rows of the same shape and dtype on all ranks; each rank may have any number of them. A
            number (an array of no dims) is one row.
        name: compared between ranks, and shown in errors.

    Returns:
        A new array.

    Raises:
        ValueError: `x` requires a gradient, or has too many dims.
        MismatchError: rows differ between ranks, in shape or dtype; on all of them.
        NotInitializedError: `kadril.init()` was not called.
    """
    world = current()
    source = as_rows(as_source(x, "allgather"))
    rows = agree_on_rows(source, [], world, "allgather", name)
    counts = [each.num_rows * row_size(source) for each in rows]
    out = new_like(x, (sum(each.num_rows for each in rows), *source.shape[1:]))
    world.transport.allgatherv(source, out, counts, name=name)
    return out


def alltoall(x: AnyArray, sizes: Sequence[int] | None = None, *, name: str = "") -> AnyArray:
    """Send block r of this rank's rows to rank r, and concatenate what comes, in rank order.

    Args:
        x: rows of the same shape and dtype on all ranks; each rank may have any number of them.
        sizes: rows that go to each rank; balanced where None. `alltoall` of them as an array tells
            how many rows come from each.
        name: compared between ranks, and shown in errors.

    Returns:
        A new array.

    Raises:
        ValueError: `x` requires a gradient, or has no rows; `sizes` do not add up to them.
        MismatchError: rows differ between ranks, in shape or dtype; on all of them.
        NotInitializedError: `kadril.init()` was not called.
    """
    world = current()
    source = as_source(x, "alltoall")
    total = num_rows(source, "alltoall")
    sends = balanced_sizes(total, world.size) if sizes is None else [int(size) for size in sizes]
    if len(sends) != world.size or sum(sends) != total or min(sends) < 0:
        raise ValueError(
            f"alltoall: sizes {sends} do not share out {total} rows among {world.size} ranks"
        )
    rows = agree_on_rows(source, sends, world, "alltoall", name)
    comes = [each.sends[world.rank] for each in rows]
    row = row_size(source)
    out = new_like(x, (sum(comes), *source.shape[1:]))
    world.transport.alltoallv(
        source, [size * row for size in sends], out, [size * row for size in comes], name=name
    )
    return out


def barrier(*, name: str = "") -> None:
    """Return when every rank has called it.

    Raises:
        NotInitializedError: `kadril.init()` was not called.
    """
    current().transport.barrier(name=name)
