"""Moves through shared memory: one call of the native core sends, receives, copies and fills.

It is told once where boxes lie; then it takes tensors as they are, and nothing is packed. What a
worker has itself it copies while messages are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch

from kadril import _native
from kadril.ops.moves.move_plan import Move, Moves, Slices
from kadril.ops.moves.packing import add_flat, own_adjoint, peer_boxes
from kadril.transport.base import Transport
from kadril.transport.failures import to_exception
from kadril.transport.shared_memory import SharedMemory

__all__ = [
    "LARGE",
    "descriptions_of",
    "empty_plan",
    "kept_forward_plan",
    "memory_for",
    "run_adjoint",
    "run_forward",
    "run_inverse",
    "run_plan",
]

# Native plans of moves: for each dtype, and what workers said when they were planned; and backwards
# (None).
NATIVE_PLANS: WeakKeyDictionary[Moves, dict[tuple[torch.dtype, bytes] | None, _native.MovePlan]] = (
    WeakKeyDictionary()
)

# Copies of so many bytes are left to torch where it has several threads for them.
LARGE = 1 << 20

Extents = list[tuple[int, int]]


def memory_for(transport: Transport, x: torch.Tensor) -> SharedMemory | None:
    """Return the memory through which `run_plan` can move a tensor; None where there is none."""
    return transport.shared_memory if x.is_cpu else None


def forward_plan(moves: Moves, dtype: torch.dtype, planned: bytes = b"") -> _native.MovePlan:
    """Make a plan of the native core for moves.

    Args:
        moves: what is moved where.
        dtype: of the tensors, for what nobody owns.
        planned: what all workers said of themselves when this was planned; empty where they have
            agreed on that already.
    """
    value = torch.full((1,), moves.fill, dtype=dtype)
    return native_plan(
        sends=moves.sends,
        recvs=moves.recvs,
        copies=moves.copies,
        edges=moves.edges,
        fill=bytes(value.untyped_storage()),
        planned=planned,
    )


def adjoint_plan(moves: Moves, *, copies: bool) -> _native.MovePlan:
    """Make a plan of the native core for moves backwards, without adding anything up.

    Args:
        moves: what is moved where.
        copies: whether what a worker has itself goes to its place.
    """
    own = [(box, mine) for mine, box in moves.copies] if copies else []
    return native_plan(sends=moves.recvs, recvs=moves.sends, copies=own)


def empty_plan(planned: bytes = b"") -> _native.MovePlan:
    """Make a plan by which nothing moves, and workers only say what they hold.

    Args:
        planned: see `forward_plan`.
    """
    return native_plan(planned=planned)


def native_plan(
    *,
    sends: Sequence[Move] = (),
    recvs: Sequence[Move] = (),
    copies: Sequence[tuple[Slices, Slices]] = (),
    edges: Sequence[Slices] = (),
    fill: bytes = b"",
    planned: bytes = b"",
) -> _native.MovePlan:
    """Make a plan of the native core, whose arguments have no names; see `_native.MovePlan`."""
    return _native.MovePlan(
        messages(sends),
        messages(recvs),
        [(extents(source), extents(target)) for source, target in copies],
        [extents(edge) for edge in edges],
        fill,
        planned,
    )


def run_forward(moves: Moves, memory: SharedMemory, x: torch.Tensor, what: str) -> torch.Tensor:
    """y = F x."""
    plan = kept_forward_plan(moves, x.dtype)
    y = x.new_empty(0 if moves.out_shape is None else moves.out_shape)
    run_plan(plan, memory, x, y, what, copies=moves.copies)
    return y


def run_adjoint(moves: Moves, memory: SharedMemory, y: torch.Tensor, what: str) -> torch.Tensor:
    """x = F* y; what comes back is added afterwards."""
    if moves.keeps_whole and moves.shape is not None:
        x = y.new_empty(moves.shape)
        copies = tuple((box, mine) for mine, box in moves.copies)
    else:
        x = own_adjoint(moves, y)
        copies = ()
    came = y.new_empty(moves.num_returning)
    run_plan(kept_adjoint_plan(moves), memory, y, x, what, copies=copies, beside=came)
    add_flat(x, peer_boxes(moves.sends), came)
    return x


def run_inverse(moves: Moves, memory: SharedMemory, y: torch.Tensor, what: str) -> torch.Tensor:
    """x = F* y, where each element has one place only: nothing is added."""
    x = y.new_empty(0 if moves.shape is None else moves.shape)
    copies = tuple((box, mine) for mine, box in moves.copies)
    run_plan(kept_adjoint_plan(moves), memory, y, x, what, copies=copies)
    return x


def kept_forward_plan(moves: Moves, dtype: torch.dtype, planned: bytes = b"") -> _native.MovePlan:
    """Return the native plan of moves, made once; for the arguments see `forward_plan`."""
    plans = NATIVE_PLANS.setdefault(moves, {})
    plan = plans.get((dtype, planned))
    if plan is None:
        plan = plans[dtype, planned] = forward_plan(moves, dtype, planned)
    return plan


def kept_adjoint_plan(moves: Moves) -> _native.MovePlan:
    """Return the native plan of moves backwards, made once."""
    plans = NATIVE_PLANS.setdefault(moves, {})
    plan = plans.get(None)
    if plan is None:
        plan = plans[None] = adjoint_plan(moves, copies=moves.is_one_to_one or moves.keeps_whole)
    return plan


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
    """Run a plan; collective over the ranks that share the memory.

    Args:
        plan: what is moved where.
        memory: of all who take part.
        source: what is sent from; of any strides.
        target: what is received into, and copied into.
        what: name of the operation in errors.
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
    return descriptions_of(
        plan.run(memory.channel, source, target, beside, mine, is_quick, what), memory
    )


def descriptions_of(found: bytes | _native.Failure | None, memory: SharedMemory) -> bytes | None:
    """Return what a plan gave; raise where it failed."""
    if isinstance(found, _native.Failure):
        raise to_exception(found, memory.world_ranks)
    return found


def messages(moves: Sequence[Move]) -> list[tuple[int, list[Extents]]]:
    """Return messages as the native core takes them."""
    return [(peer, [extents(box) for box in boxes]) for peer, boxes in moves]


def extents(box: Slices) -> Extents:
    """Return (start, size) of each dim of a box."""
    return [(each.start, each.stop - each.start) for each in box]
