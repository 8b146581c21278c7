"""Running a plan of moves, by the carrier that the transport allows, as a linear operator.

forward     y_r[i] = x[i]              for i in the box that worker r needs
adjoint     x*[i]  = sum_r y*_r[i]     boxes go back to their owners, who add them up
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kadril.ops.linear_operator import apply_operator
from kadril.ops.moves import packed_carrier, shm_carrier
from kadril.ops.moves.move_plan import Moves
from kadril.ops.moves.packing import own_adjoint
from kadril.transport.base import Transport

__all__ = ["MoveOperator", "move", "run_moves"]


def run_moves(moves: Moves, transport: Transport, x: torch.Tensor, what: str) -> torch.Tensor:
    """y = F x; collective over the transport."""
    memory = shm_carrier.memory_for(transport, x)
    if memory is not None:
        return shm_carrier.run_forward(moves, memory, x, what)
    return packed_carrier.run_forward(moves, transport, x, what)


def run_adjoint(moves: Moves, transport: Transport, y: torch.Tensor, what: str) -> torch.Tensor:
    """x = F* y; collective over the transport, but where a tensor is replicated."""
    if moves.is_replicated:
        return own_adjoint(moves, y)
    memory = shm_carrier.memory_for(transport, y)
    if memory is not None:
        run = shm_carrier.run_inverse if moves.is_one_to_one else shm_carrier.run_adjoint
        return run(moves, memory, y, what)
    carry = packed_carrier.run_inverse if moves.is_one_to_one else packed_carrier.run_adjoint
    return carry(moves, transport, y, what)


class MoveOperator(NamedTuple):
    """Moves as a linear operator.

    Attributes:
        moves: what is moved where.
        transport: between all owners and takers.
        what: name of the operation in errors.
        dtype: of the tensor, which a rank that owns nothing of it cannot tell from its own.
        nothing: shape of what a rank gets that needs nothing.
    """

    moves: Moves
    transport: Transport
    what: str
    dtype: torch.dtype
    nothing: tuple[int, ...]

    @property
    def tangent(self) -> MoveOperator:
        """The derivative: a constant beyond the edge has none."""
        return self._replace(moves=self.moves.without_fill)

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y = F x."""
        if self.moves.shape is None:
            x = x.new_empty(0, dtype=self.dtype)
        y = run_moves(self.moves, self.transport, x, what)
        return y if self.moves.out_shape is not None else y.reshape(self.nothing)

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor | None:
        """x* = F* y*."""
        x = run_adjoint(self.moves, self.transport, y, what)
        return x if self.moves.shape is not None else None


def move(
    x: torch.Tensor,
    moves: Moves,
    transport: Transport,
    what: str,
    *,
    requires_grad: bool,
    dtype: torch.dtype | None = None,
    nothing: tuple[int, ...] = (0,),
) -> torch.Tensor:
    """Get the box that is needed; collective over the transport.

    Args:
        x: what this process owns; anything without elements where it owns nothing.
        moves: what is moved where.
        transport: between all owners and takers.
        what: name of the operation in errors.
        requires_grad: whether any owner's tensor does. Then every rank takes part in the backward
            pass, also one that gave nothing.
        dtype: of the tensor; that of `x` where None.
        nothing: shape, without elements, of the result where this process needs nothing.
    """
    operator = MoveOperator(moves, transport, what, dtype or x.dtype, nothing)
    return apply_operator(operator, x, requires_grad=requires_grad)
