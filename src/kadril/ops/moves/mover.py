"""A mover, which moves blocks again and again, by what all workers hold of a tensor.

On shared memory, agreeing on that and moving are one call:

    every worker posts what it holds, and what it has planned for
    the same on all:     messages move, and each worker copies what it has itself
    otherwise:           nothing moves; all learn what there is, plan for it, and call again
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch

from kadril import _native
from kadril.ops.linear_operator import Adjoint, apply_operator, put_in_graph, resolved
from kadril.ops.moves.carriers import MoveOperator
from kadril.ops.moves.move_plan import Moves
from kadril.ops.moves.shm_carrier import (
    LARGE,
    descriptions_of,
    empty_plan,
    kept_forward_plan,
    memory_for,
    run_plan,
)
from kadril.ops.structure import PlanCache, Structure, agree, description_of, structure_of
from kadril.partition import Partition
from kadril.transport.shared_memory import SharedMemory

__all__ = ["Moved", "Mover", "Planned"]


NOTHING = torch.empty(0)
NO_PLAN = empty_plan()


class Planned(NamedTuple):
    """Plan of a worker for tensors of some structure.

    Attributes:
        moves: what moves; None where nothing does, on all workers.
        plan: what its user wants to know besides.
    """

    moves: Moves | None
    plan: Any = None


class Moved(NamedTuple):
    """Result of moving a tensor.

    Attributes:
        y: what this worker got; None where nothing moves.
        structure: of the tensor.
        plan: of `Planned`.
    """

    y: torch.Tensor | None
    structure: Structure
    plan: Any


class Known(NamedTuple):
    """Cached plan for a tensor that a worker holds again, valid if the others hold what they did.

    Attributes:
        structure: of the tensor that it is a block of.
        planned: what to do with it.
        operator: the moves; None where nothing moves.
        plan: the same, for the native core.
        mine: what it says of itself.
        nothing: what it gives from where it owns nothing.
        out_shape: of the result, where the fast path (`run_again`) may be tried: small, real
            tensors of more than one element. None for the slow path.
        is_in_graph: whether the result has a gradient.
        adjoint: for the graph, where the tensor itself has a gradient.
    """

    structure: Structure
    planned: Planned
    operator: MoveOperator | None
    plan: _native.MovePlan
    mine: bytes
    nothing: torch.Tensor | None = None
    out_shape: tuple[int, ...] | None = None
    is_in_graph: bool = False
    adjoint: Adjoint | None = None


class Mover:
    """Moves the blocks of tensors, again and again.

    Args:
        partition: the workers that take part.
        owners: those of them that hold the tensor.
        plan: from the structure of the tensor to what this worker does.
        preserve_batch: whether a rank that needs nothing gets a zero-volume tensor with the first
            size of its input, or with none.
        what: name of the operation in errors.
        descriptions: cache shared by movers with equal settings: from this worker's block (shape,
            dtype, gradient flags) to the descriptions that all workers sent last time. A plan for
            those is tried first. A cache of its own where None.
    """

    def __init__(
        self,
        partition: Partition,
        owners: Partition,
        plan: Callable[[Structure], Planned],
        what: str,
        *,
        preserve_batch: bool = False,
        descriptions: PlanCache | None = None,
    ) -> None:
        self.partition = partition
        self.owners = owners
        self.plan = plan
        self.what = what
        self.preserve_batch = preserve_batch
        self._descriptions = PlanCache() if descriptions is None else descriptions
        self._known = PlanCache()
        # The last `Known`, by (requires_grad, grad mode), which the native plan does not see.
        self._recent = PlanCache()

    def __call__(self, x: torch.Tensor) -> Moved:
        """Agree on the structure of a tensor, and move it; collective over the partition.

        Raises:
            MismatchError, UnsupportedError, ValueError: what `agree` and the plan raise; on all
                workers.
        """
        memory = memory_for(self.partition.transport, x)
        if memory is not None:
            flags = (x.requires_grad, torch.is_grad_enabled())
            recent: Known | None = self._recent.find(flags)
            if recent is not None and recent.out_shape is not None:
                # The usual case, in as few steps as can be: Python takes a third of a short one.
                y = x.new_empty(recent.out_shape)
                found = recent.plan.run_again(memory.channel, x, y, self.what)
                if found is None:
                    if recent.adjoint is not None:
                        y = put_in_graph(x, recent.adjoint, (y,))
                    else:
                        y = self._in_graph(recent, x, y)
                    return Moved(y, recent.structure, recent.planned.plan)
                if found is not NotImplemented:
                    self._learn(x, recent.mine, descriptions_of(found, memory))
            return self._move_through(memory, x, flags)
        structure = agree(self.partition, x, self.what, owners=self.owners)
        planned = self.plan(structure)
        if planned.moves is None:
            return Moved(None, structure, planned.plan)
        operator = self._operator(x, structure, planned.moves)
        y = apply_operator(operator, x, requires_grad=structure.requires_grad)
        return Moved(y, structure, planned.plan)

    def _move_through(
        self, memory: SharedMemory, x: torch.Tensor, flags: tuple[bool, bool]
    ) -> Moved:
        known: Known | None = self._known.find(key_of(x))
        if known is None:
            mine = description_of(x)
            descriptions: bytes | None = self._descriptions.find(key_of(x))
            if descriptions is None:
                descriptions = run_plan(NO_PLAN, memory, NOTHING, NOTHING, self.what, mine=mine)
            known = self._learn(x, mine, descriptions)
        while True:
            operator, what = known.operator, self.what
            if operator is None:
                y = None
                others = run_plan(known.plan, memory, NOTHING, NOTHING, what, mine=known.mine)
            else:
                moves = operator.moves
                source = resolved(x) if known.nothing is None else known.nothing
                y = source.new_empty(0 if moves.out_shape is None else moves.out_shape)
                others = run_plan(known.plan, memory, source, y, what, moves.copies, known.mine)
            if others is None:
                break
            known = self._learn(x, known.mine, others)
        if y is not None and operator is not None:
            if operator.moves.out_shape is None:
                y = y.reshape(operator.nothing)
            y = self._in_graph(known, x, y)
        if known.out_shape is not None:
            self._recent.put(flags, known)
        return Moved(y, known.structure, known.planned.plan)

    @staticmethod
    def _in_graph(known: Known, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if known.operator is None or not known.is_in_graph:
            return y
        return apply_operator(known.operator, x, requires_grad=True, done=y)

    def _learn(self, x: torch.Tensor, mine: bytes, descriptions: bytes | None) -> Known:
        """Plan for what all workers hold."""
        if descriptions is None:
            raise AssertionError("nobody has planned, and there was a plan")
        structure = structure_of(
            descriptions, self.partition.ranks, self.owners.ranks, self.owners.shape, self.what
        )
        planned = self.plan(structure)
        if planned.moves is None:
            known = Known(
                structure, planned, operator=None, plan=empty_plan(descriptions), mine=mine
            )
        else:
            known = self._know_moves(x, structure, planned, planned.moves, mine, descriptions)
        self._known.put(key_of(x), known)
        self._descriptions.put(key_of(x), descriptions)
        return known

    def _know_moves(
        self,
        x: torch.Tensor,
        structure: Structure,
        planned: Planned,
        moves: Moves,
        mine: bytes,
        descriptions: bytes,
    ) -> Known:
        """Return what is known where something moves."""
        operator = self._operator(x, structure, moves)
        plan = kept_forward_plan(moves, structure.dtype, descriptions)
        nothing = None if moves.shape is not None else torch.empty(0, dtype=structure.dtype)
        # Lazily negated tensors of these are not contiguous, but for those of one element.
        is_plain = (
            moves.shape is not None and not x.is_complex() and x.numel() > 1 and x.nbytes < LARGE
        )
        out_shape = moves.out_shape if is_plain else None
        needs_graph = x.requires_grad or structure.requires_grad
        is_in_graph = needs_graph and torch.is_grad_enabled()
        adjoint = Adjoint(operator, x.shape, x.dtype) if is_in_graph and x.requires_grad else None
        return Known(
            structure,
            planned,
            operator=operator,
            plan=plan,
            mine=mine,
            nothing=nothing,
            out_shape=out_shape,
            is_in_graph=is_in_graph,
            adjoint=adjoint,
        )

    def _operator(self, x: torch.Tensor, structure: Structure, moves: Moves) -> MoveOperator:
        batch = x.shape[0] if self.preserve_batch and x.dim() else None
        return MoveOperator(
            moves,
            self.partition.transport,
            self.what,
            structure.dtype,
            (0,) if batch is None else (batch, 0),
        )


def key_of(x: torch.Tensor) -> Hashable:
    """Return all that `Known` depends on, of this worker's own tensor."""
    return x.shape, x.dtype, x.requires_grad, torch.is_grad_enabled()
