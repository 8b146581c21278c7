"""Edges: what is beyond the ends of a dim that is spread over workers.

    x                 0 1 2 3 | 4 5 6 7                     two workers
    zeros        . . [0 1 2 3 | 4 5 6 7] . .
    circular     6 7 [0 1 2 3 | 4 5 6 7] 0 1
    reflect      2 1 [0 1 2 3 | 4 5 6 7] 6 5                the mirror itself is not repeated
    replicate    0 0 [0 1 2 3 | 4 5 6 7] 7 7

The first two are known to the exchange itself. For the others a worker gets the *sources*, the
elements that its box is made of, and picks from them: y[i] = x[source(i)]. Its adjoint adds up what
was picked several times; torch has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.partition import Interval

__all__ = ["EDGES", "check_reach", "hull_of", "pick", "sources_of"]

EDGES = ("zeros", "circular", "reflect", "replicate")


def check_reach(needed: Sequence[Interval], size: int, edge: str, where: str) -> None:
    """Raise `ValueError` where a dim has too few elements for what is needed beyond its ends.

    Args:
        needed: by each position along the axis.
        size: of the dim.
        edge: what is beyond its ends.
        where: operation and dim, for the error.
    """
    reach = max(max(-each.start, each.stop - size, 0) for each in needed)
    least = {"reflect": reach + 1, "replicate": 1, "circular": 1}.get(edge, 0)
    if reach and size < least:
        raise ValueError(
            f"{where} has {size} elements, too few for {reach} beyond its end ({edge});"
            f" it needs {least}"
        )


def sources_of(needed: Interval, size: int, edge: str) -> torch.Tensor | None:
    """The element of a dim that each one of an interval is a copy of.

    Returns:
        Their numbers; None where the exchange gives the interval itself.
    """
    if edge in ("zeros", "circular") or (needed.start >= 0 and needed.stop <= size):
        return None
    places = torch.arange(needed.start, needed.stop)
    if edge == "replicate":
        return places.clamp(0, size - 1)
    return (size - 1) - ((size - 1) - places.abs()).abs()


def hull_of(needed: Interval, size: int, edge: str) -> Interval:
    """The interval to ask for: all sources of what is needed."""
    sources = sources_of(needed, size, edge)
    if sources is None or not needed.size:
        return needed
    return Interval(int(sources.min()), int(sources.max()) + 1)


def pick(x: torch.Tensor, sources: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """y[i, j, ...] = x[sources[0][i], sources[1][j], ...]; a dim stays as it is where None."""
    for dim, places in enumerate(sources):
        if places is not None:
            x = x.index_select(dim, places)
    return x
