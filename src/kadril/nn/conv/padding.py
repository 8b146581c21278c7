"""Padding by reflection or replication, where the padded tensor is spread over workers.

    x                  0 1 2 3 | 4 5 6 7                       two workers
    reflect       2 1 [0 1 2 3 | 4 5 6 7] 6 5
    replicate     0 0 [0 1 2 3 | 4 5 6 7] 7 7

A worker needs an interval of the padded dim. It is given its *sources*, the part of the tensor that
these elements are copies of, and pads that by itself: only at the two ends of the dim is there
anything to pad. Zeros and circular padding need none of this: a halo exchange fills with zeros, or
goes on at the other end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from kadril.partition import Interval

__all__ = ["check_padding", "extend", "sources_of"]


def check_padding(mode: str, before: int, after: int, size: int, where: str) -> None:
    """Refuse what torch refuses: padding that the dim has no elements for.

    Args:
        mode: "zeros", "reflect", "replicate" or "circular".
        before: elements to add before the first one.
        after: elements to add after the last one.
        size: of the dim.
        where: layer and dim, for the error.

    Raises:
        ValueError: by reflection as much as the dim has elements, or circular with more than that.
    """
    widest = max(before, after)
    if mode == "reflect" and widest >= size:
        raise ValueError(
            f"{where}: padding of {widest} by reflection needs at least {widest + 1} elements, and"
            f" there are {size}"
        )
    if mode == "circular" and widest > size:
        raise ValueError(
            f"{where}: circular padding of {widest} goes around more than once, there being {size}"
            " elements"
        )


def sources_of(needed: Interval, size: int, mode: str) -> Interval:
    """The elements of a dim from which an interval of the padded dim can be made by `extend`.

    Args:
        needed: in the coordinates of the dim: below 0, and from `size` on, is padding.
        size: of the dim.
        mode: of padding. With "zeros" and "circular" the exchange itself goes beyond the edge.
    """
    if mode == "replicate":
        first = min(max(needed.start, 0), size - 1)
        last = min(max(needed.stop - 1, 0), size - 1)
        return Interval(first, last + 1)
    if mode == "reflect":
        before, after = beyond(needed, size)
        # Element -1 is a copy of element 1: the mirror itself is not repeated.
        start = 0 if before else min(needed.start, size - 1 - after)
        stop = size if after else max(needed.stop, before + 1)
        return Interval(start, stop)
    return needed


def beyond(needed: Interval, size: int) -> tuple[int, int]:
    """How far an interval reaches beyond both ends of a dim."""
    return max(0, -needed.start), max(0, needed.stop - size)


def extend(
    x: torch.Tensor,
    had: Sequence[Interval],
    needed: Sequence[Interval],
    sizes: Sequence[int],
    mode: str,
) -> torch.Tensor:
    """Make a box of the padded tensor from its sources.

    Args:
        x: the sources; one dim for each of the following.
        had: what they are, for each dim.
        needed: what is wanted, for each dim.
        sizes: of the whole tensor.
        mode: "reflect" or "replicate".
    """
    edges = [beyond(want, size) for want, size in zip(needed, sizes, strict=True)]
    if any(before or after for before, after in edges):
        spatial = [width for edge in reversed(edges[2:]) for width in edge]
        x = functional.pad(x, spatial, mode=mode)
    starts = [
        want.start - (have.start - before)
        for have, want, (before, _) in zip(had, needed, edges, strict=True)
    ]
    return x[
        tuple(slice(start, start + want.size) for start, want in zip(starts, needed, strict=True))
    ]
