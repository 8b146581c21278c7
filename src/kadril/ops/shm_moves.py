"""Moves through shared memory: one call of the native core sends, receives, copies and fills.

It is told once where boxes lie; then it takes tensors as they are, and nothing is packed. What a
worker has itself it copies while messages are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from kadril import _native
from kadril.ops.packing import Slices
from kadril.transport.base import Transport
from kadril.transport.failures import to_exception
from kadril.transport.shared_memory import SharedMemory

if TYPE_CHECKING:
    from kadril.ops.moves import Move, Moves

__all__ = ["LARGE", "adjoint_plan", "forward_plan", "memory_for", "rows_of", "run_plan"]


# Copies of so many bytes are left to torch where it has several threads for them.
LARGE = 1 << 20

Extents = list[tuple[int, int]]


def memory_for(transport: Transport, x: torch.Tensor) -> SharedMemory | None:
    """Return the memory through which `run_plan` can move a tensor; None where there is none."""
    return transport.shared_memory if x.is_cpu else None


def forward_plan(moves: Moves, dtype: torch.dtype, planned: bytes = b"") -> _native.MovePlan:
    """The moves, as the native core takes them.

    Args:
        moves: what to do.
        dtype: of the tensors, for what nobody owns.
        planned: what all workers said of themselves when this was planned; empty where they have
            agreed on that already.
    """
    value = torch.full((1,), moves.fill, dtype=dtype)
    return _native.MovePlan(
        messages(moves.sends),
        messages(moves.recvs),
        [(extents(mine), extents(box)) for mine, box in moves.copies],
        [extents(edge) for edge in moves.edges],
        bytes(value.untyped_storage()),
        planned,
    )


def adjoint_plan(moves: Moves, *, copies: bool) -> _native.MovePlan:
    """The moves backwards, without adding anything up.

    Args:
        moves: what to do.
        copies: whether what a worker has itself goes to its place.
    """
    own = [(extents(box), extents(mine)) for mine, box in moves.copies] if copies else []
    return _native.MovePlan(messages(moves.recvs), messages(moves.sends), own, [], b"", b"")


def run_plan(
    plan: _native.MovePlan,
    memory: SharedMemory,
    source: torch.Tensor,
    target: torch.Tensor,
    what: str,
    copies: Sequence[tuple[Slices, Slices]] = (),
    mine: bytes = b"",
    beside: torch.Tensor | None = None,
) -> bytes | None:
    """Move; collective over the ranks that share the memory.

    Args:
        plan: what to do.
        memory: of all who take part.
        source: what is sent from; of any strides.
        target: what is received into, and copied into.
        what: for errors.
        copies: boxes of both that the plan copies.
        mine: what this worker says of itself.
        beside: where it is not received into the target: flat, with room for all that comes.

    Returns:
        None once everything is done; what all workers said where the plan is not for that.
    """
    is_quick = source.is_contiguous() and (source.nbytes < LARGE or torch.get_num_threads() == 1)
    if not is_quick:
        source = source.detach()
        for box, room in copies:
            target[room] = source[box]
    return rows_of(plan.run(memory.channel, source, target, beside, mine, is_quick, what), memory)


def rows_of(found: bytes | _native.Failure | None, memory: SharedMemory) -> bytes | None:
    """What a plan gave, as an exception where it failed."""
    if isinstance(found, _native.Failure):
        raise to_exception(found, memory.world_ranks)
    return found


def messages(moves: Sequence[Move]) -> list[tuple[int, list[Extents]]]:
    """Messages, box by box."""
    return [(peer, [extents(box) for box in boxes]) for peer, boxes in moves]


def extents(box: Slices) -> Extents:
    """A box as (start, size) of each dim."""
    return [(each.start, each.stop - each.start) for each in box]
