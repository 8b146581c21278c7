"""Moves by messages, over any transport: boxes are packed, exchanged, and unpacked."""

from __future__ import annotations

import torch

from kadril.ops.moves.move_plan import Moves
from kadril.ops.moves.packing import Inbox, own_adjoint, pack, peer_boxes
from kadril.transport.base import Transport

__all__ = ["run_adjoint", "run_forward", "run_inverse"]


def run_forward(moves: Moves, transport: Transport, x: torch.Tensor, what: str) -> torch.Tensor:
    """y = F x."""
    y = x.new_empty(0 if moves.out_shape is None else moves.out_shape)
    for edge in moves.edges:
        y[edge] = moves.fill
    for mine, box in moves.copies:
        y[box] = x[mine]
    inbox = Inbox(peer_boxes(moves.recvs), y, into=y)
    messages = pack((peer, x[box]) for peer, box in peer_boxes(moves.sends))
    transport.exchange(messages, inbox.messages(), name=what)
    inbox.put_into(y)
    return y


def run_adjoint(moves: Moves, transport: Transport, y: torch.Tensor, what: str) -> torch.Tensor:
    """x = F* y."""
    x = own_adjoint(moves, y)
    inbox = Inbox(peer_boxes(moves.sends), x)
    messages = pack((peer, y[box]) for peer, box in peer_boxes(moves.recvs))
    transport.exchange(messages, inbox.messages(), name=what)
    inbox.add_to(x)
    return x


def run_inverse(moves: Moves, transport: Transport, y: torch.Tensor, what: str) -> torch.Tensor:
    """x = F* y, where each element has one place only: nothing is added."""
    x = y.new_empty(0 if moves.shape is None else moves.shape)
    for mine, box in moves.copies:
        x[mine] = y[box]
    inbox = Inbox(peer_boxes(moves.sends), x, into=x)
    messages = pack((peer, y[box]) for peer, box in peer_boxes(moves.recvs))
    transport.exchange(messages, inbox.messages(), name=what)
    inbox.put_into(x)
    return x
