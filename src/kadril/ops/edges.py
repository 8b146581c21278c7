"""Edges: what is beyond the ends of a dim that is spread over workers.

    x                 0 1 2 3 | 4 5 6 7                     two workers
    zeros        . . [0 1 2 3 | 4 5 6 7] . .                or another constant
    circular     6 7 [0 1 2 3 | 4 5 6 7] 0 1
    reflect      2 1 [0 1 2 3 | 4 5 6 7] 6 5                the mirror itself is not repeated
    replicate    0 0 [0 1 2 3 | 4 5 6 7] 7 7

The first two are known to the moves themselves. For the others a worker gets its *sources*, the
interval of the tensor that its box is made of, and copies from them: y[i] = x[source(i)]. The
adjoint adds up what was copied several times; torch has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from kadril.partition import Interval

__all__ = [
    "EDGES",
    "check_reach",
    "is_mirrored",
    "is_padded_by_torch",
    "pad",
    "pick",
    "source_interval",
    "source_positions",
]

EDGES = ("zeros", "circular", "reflect", "replicate")

# torch pads the dims after batch and channels, and no more than three of them.
FIRST_PADDED = 2
MOST_PADDED = 3


def is_mirrored(edge: str) -> bool:
    """Whether elements beyond the ends are made by the worker itself, of its sources."""
    return edge in ("reflect", "replicate")


def check_reach(needed: Sequence[Interval], size: int, edge: str, where: str) -> None:
    """Refuse boxes that reach further beyond the ends of a dim than its elements allow.

    Args:
        needed: by each position along the axis.
        size: of the dim.
        edge: what is beyond its ends.
        where: operation and dim, for the error.

    Raises:
        ValueError: the dim has too few elements.
    """
    reach = max(max(-each.start, each.stop - size, 0) for each in needed)
    least = {"reflect": reach + 1, "replicate": 1, "circular": 1}.get(edge, 0)
    if reach and size < least:
        raise ValueError(
            f"{where} has {size} elements, too few for {reach} beyond its end ({edge});"
            f" it needs {least}"
        )


def beyond(needed: Interval, size: int) -> tuple[int, int]:
    """Return how far an interval reaches beyond both ends of a dim."""
    return max(0, -needed.start), max(0, needed.stop - size)


def source_interval(needed: Interval, size: int, edge: str) -> Interval:
    """Return the elements of a dim that an interval is made of, as one interval to ask for.

    Args:
        needed: may go beyond both ends of the dim.
        size: of the dim.
        edge: what is beyond its ends; with "zeros" and "circular" the moves go there themselves.
    """
    before, after = beyond(needed, size)
    if not is_mirrored(edge) or not needed.size or not (before or after):
        return needed
    if edge == "replicate":
        first = min(max(needed.start, 0), size - 1)
        last = min(max(needed.stop - 1, 0), size - 1)
        return Interval(first, last + 1)
    # Element -1 is a copy of element 1: the mirror itself is not repeated.
    start = 0 if before else min(needed.start, size - 1 - after)
    stop = size if after else max(needed.stop, before + 1)
    return Interval(start, stop)


def source_positions(needed: Interval, size: int, edge: str) -> list[int] | None:
    """Return where the source of each element of an interval is in its `source_interval`.

    Returns:
        None where the sources are the interval itself.
    """
    if not is_mirrored(edge) or beyond(needed, size) == (0, 0):
        return None
    start = source_interval(needed, size, edge).start
    last = size - 1
    places = range(needed.start, needed.stop)
    if edge == "replicate":
        return [min(max(place, 0), last) - start for place in places]
    return [last - abs(last - abs(place)) - start for place in places]


def pick(x: torch.Tensor, positions: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """y[i, j, ...] = x[positions[0][i], positions[1][j], ...]; a dim stays as it is where None."""
    for dim, places in enumerate(positions):
        if places is not None:
            x = x.index_select(dim, places.to(x.device))
    return x


def is_padded_by_torch(x: torch.Tensor, edges: Sequence[str]) -> bool:
    """Whether torch has a padding of this kind, which does all dims in one pass."""
    return (
        (x.is_floating_point() or x.is_complex())
        and FIRST_PADDED < x.dim() <= FIRST_PADDED + MOST_PADDED
        and not any(is_mirrored(edge) for edge in edges[:FIRST_PADDED])
        and len(set(edges[FIRST_PADDED:])) == 1
    )


def pad(
    x: torch.Tensor,
    sources: Sequence[Interval],
    needed: Sequence[Interval],
    sizes: Sequence[int],
    edge: str,
) -> torch.Tensor:
    """Make a box of its sources, by torch's own padding of all dims after the second.

    Args:
        x: the sources; one dim for each of the following.
        sources: what they are.
        needed: the box.
        sizes: of the whole tensor.
        edge: "reflect" or "replicate".
    """
    widths = [
        beyond(want, size) if dim >= FIRST_PADDED else (0, 0)
        for dim, (want, size) in enumerate(zip(needed, sizes, strict=True))
    ]
    if any(before or after for before, after in widths):
        spatial = [width for both in reversed(widths[FIRST_PADDED:]) for width in both]
        x = functional.pad(x, spatial, mode=edge)
    for dim, (have, want, (before, _)) in enumerate(zip(sources, needed, widths, strict=True)):
        start = want.start - (have.start - before) if dim >= FIRST_PADDED else 0
        if x.shape[dim] != want.size:
            x = x.narrow(dim, start, want.size)
    return x
