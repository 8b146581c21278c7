"""Alignment: an operand is brought from the layout that it has to the one that a call needs.

| have | want | by |
|---|---|---|
| (0, None, 2, 3) | (0, None, None, None) | gathering along axes 2 and 3 |
| (0, None, None, None) | (0, None, 2, 3) | cutting along them |
| (0, None) | (0, None), for work that is split along axes 2 and 3 | spreading over them |
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kadril import ops
from kadril.nn.distribution.layout import Layout, Subgrids, axes_of
from kadril.nn.distribution.replicas import Cutter, WholeGatherer

__all__ = ["Movement", "make_alignment"]

Movement = Callable[[torch.Tensor], torch.Tensor]


def make_alignment(
    subgrids: Subgrids, have: Layout, want: Layout, work: frozenset[int], what: str
) -> list[Movement]:
    """Return the movements to make, in order; none where the layouts agree. Collective.

    Args:
        subgrids: of the partition.
        have: layout of the operand.
        want: layout in which it is needed.
        work: axes along which the work is split.
        what: name of the call in errors.
    """
    gathered = tuple(h if h != w else None for h, w in zip(have, want, strict=True))
    cut = tuple(w if h != w else None for h, w in zip(have, want, strict=True))
    shared = work - axes_of(want)
    movements: list[Movement] = []
    if axes_of(gathered):
        movements.append(WholeGatherer(subgrids.partition(gathered), f"gather before {what}"))
    if axes_of(cut):
        movements.append(Cutter(subgrids.partition(cut), f"cut before {what}"))
    if shared and subgrids.P.active:
        group = subgrids.group(shared)
        movements.append(lambda x: ops.spread(x, group, what=f"an operand of {what}"))
    return movements
