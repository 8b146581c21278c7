"""Halo exchange: every worker gets its block and what it needs around it.

    blocks        | . . . . | . . . . | . . . . |
    with halos    | . . . . 4 5 |
                        [ 2 3 | . . . . | 8 9 ]         beyond the edge: zeros, or the other end
                                [ 6 7 | . . . . | 0 0 ]

What is needed may reach beyond the direct neighbour, and may be less than the block. Corners come
with the rest: boxes go straight to whoever needs them, in one exchange.

    y_r[i] = x[i]  for i in the box of worker r         x*[i] = sum_r y*_r[i]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kadril.ops.moves import Moves, Side, move, plan_moves
from kadril.ops.structure import PlanCache, Structure, agree
from kadril.partition import Interval, Partition

__all__ = ["HaloExchanger", "Needed", "halo_exchange"]

# From the blocks along one dim to what each position along its axis needs of it.
Needed = Callable[[Sequence[Interval]], Sequence[Interval]]


def halo_exchange(
    x: torch.Tensor,
    P_x: Partition,
    halo: Sequence[tuple[int, int]],
    *,
    periodic: Sequence[bool] | bool = False,
    what: str = "HaloExchange",
) -> torch.Tensor:
    """Give each block its surroundings; collective over the partition. Not in place.

    Args:
        x: block of the global tensor on `P_x`; returned as a copy on other ranks.
        P_x: one axis for each dim.
        halo: for each dim, elements before and after the block; negative ones cut it.
        periodic: whether a dim goes on at its other end, for each or for all; zeros otherwise.
        what: for errors.

    Raises:
        ValueError: the partition does not fit to the tensor, or nothing would be left.
        MismatchError: the blocks do not fit together.
    """

    def widen(before: int, after: int) -> Needed:
        return lambda blocks: [
            Interval(block.start - before, block.stop + after) for block in blocks
        ]

    needs = [widen(before, after) for before, after in halo]
    return HaloExchanger(P_x, needs, periodic=periodic, what=what)(x)


class HaloExchanger:
    """A halo exchange that is done again and again.

    Args:
        P_x: one axis for each dim of the tensors.
        needs: for each dim, from blocks to what is needed; None for the block itself.
        periodic: as of `halo_exchange`.
        fill: for what is beyond the edge.
        what: for errors.
    """

    def __init__(
        self,
        P_x: Partition,
        needs: Sequence[Needed | None],
        *,
        periodic: Sequence[bool] | bool = False,
        fill: float = 0.0,
        what: str = "HaloExchange",
    ) -> None:
        if len(needs) != P_x.dim:
            raise ValueError(f"{what}: {len(needs)} halos for the {P_x.dim} axes of {P_x!r}")
        self.P_x = P_x
        self.needs = needs
        self.periodic = [periodic] * P_x.dim if isinstance(periodic, bool) else list(periodic)
        self.fill = fill
        self.what = what
        self._plans = PlanCache()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Exchange."""
        if not self.P_x.active:
            return x.clone()
        return self.exchange(x, agree(self.P_x, x, self.what))

    def exchange(self, x: torch.Tensor, structure: Structure) -> torch.Tensor:
        """Exchange, with the structure already agreed on."""
        moves = self._plans.get(structure, lambda: self._plan(structure))
        return move(x, moves, self.P_x.transport, self.what, requires_grad=structure.requires_grad)

    def _plan(self, structure: Structure) -> Moves:
        blocks = structure.blocks(self.what)
        needed = [
            list(have if need is None else need(have))
            for have, need in zip(blocks, self.needs, strict=True)
        ]
        for dim, intervals in enumerate(needed):
            for position, interval in enumerate(intervals):
                if interval.size == 0:
                    raise ValueError(
                        f"{self.what}: nothing is left of dim {dim} for position {position} along"
                        f" axis {dim}, which has {blocks[dim][position].size} elements"
                    )
        return plan_moves(
            Side(range(self.P_x.size), self.P_x.shape, blocks, self.P_x.index),
            Side(range(self.P_x.size), self.P_x.shape, needed, self.P_x.index),
            periods=[
                have[-1].stop if wraps else None
                for have, wraps in zip(blocks, self.periodic, strict=True)
            ],
            fill=self.fill,
        )
