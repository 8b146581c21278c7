"""Halo exchange between direct neighbours, in place.

The input has room for its halos; dims are exchanged one after the other, so that corners come by
way of both neighbours:

    +---+-----------+---+        dim 0: bulk of dim 1 only
    |   | h a l o   |   |        dim 1: the halos of dim 0 too
    +---+-----------+---+
    | h |  b u l k  | h |        forward   ghost = neighbour's bulk
    +---+-----------+---+        adjoint   neighbour's bulk += ghost, ghost = 0; dims in reverse
    |   | h a l o   |   |
    +---+-----------+---+

This layer does not stand on `kadril.ops.halo_exchange`, which returns new memory and fills all of
it. Here the caller has made the room and may have put padding into it, each worker knows only its
own widths, and both passes modify the tensors that they are given; programs rely on each of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kadril.ops.calling import apply
from kadril.transport.base import Transport

from ..backends.mpi.buffer import checked_manager
from ..backends.mpi.partition import MPICartesianPartition
from .module import Module

__all__ = ["HaloExchange"]

Box = tuple[slice, ...]


class Side(NamedTuple):
    """One neighbour along one axis."""

    peer: int
    bulk: Box  # what it needs of this worker
    ghost: Box  # what this worker needs of it


def swap(
    x: torch.Tensor, sides: Sequence[Side], transport: Transport, what: str, *, adjoint: bool
) -> None:
    """Exchange with the neighbours along one axis, in place."""
    gives = [side.ghost if adjoint else side.bulk for side in sides]
    takes = [side.bulk if adjoint else side.ghost for side in sides]
    sends = [
        (side.peer, x[box].contiguous().clone())
        for side, box in zip(sides, gives, strict=True)
        if x[box].numel()
    ]
    received = [x.new_empty(x[box].shape) for box in takes]
    # Two workers in a ring are each other's neighbours on both sides: what the one gives to its
    # left is what the other gets from its right. Messages between two are matched in order.
    recvs = [
        (side.peer, room)
        for side, room in reversed(list(zip(sides, received, strict=True)))
        if room.numel()
    ]
    transport.exchange(sends, recvs, name=what)
    for box, room in zip(takes, received, strict=True):
        if adjoint:
            x[box] += room
        else:
            x[box] = room


class HaloExchangeFunction(torch.autograd.Function):
    """The exchange; it modifies its input, and its adjoint modifies the gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, axes: list[list[Side]], transport: Transport, what: str
    ) -> torch.Tensor:
        """Fill the ghosts."""
        ctx.axes, ctx.transport, ctx.what = axes, transport, what
        ctx.mark_dirty(x)
        for sides in axes:
            swap(x, sides, transport, what, adjoint=False)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Add the ghosts to the bulk that they came from."""
        (grad,) = grads
        if any(step == 0 for step in grad.stride()):
            grad = grad.clone()  # one element for many cannot be written to
        for sides in reversed(ctx.axes):
            swap(grad, sides, ctx.transport, f"adjoint of {ctx.what}", adjoint=True)
            for side in sides:
                grad[side.ghost] = 0
        return grad, None, None, None


class HaloExchange(Module):
    """A halo exchange for a tensor that has room for its halos; in place in both directions.

    Args:
        P_x: one axis for each dim; neighbours are those of its topology.
        halo_shape: for each dim, room before and after the bulk.
        recv_buffer_shape: elements that come from the neighbours before and after.
        send_buffer_shape: elements that are sent to them.
        buffer_manager: not needed here.
    """

    def __init__(
        self,
        P_x: MPICartesianPartition,
        halo_shape: npt.ArrayLike | None,
        recv_buffer_shape: npt.ArrayLike | None,
        send_buffer_shape: npt.ArrayLike | None,
        buffer_manager: object = None,
    ) -> None:
        super().__init__()
        self.P_x = P_x
        self.buffer_manager = checked_manager(buffer_manager)
        self._core = P_x._core
        if self._core is None or not P_x.active:
            return
        self.halo_shape = np.asarray(halo_shape, dtype=np.int64)
        self.recv_buffer_shape = np.asarray(recv_buffer_shape, dtype=np.int64)
        self.send_buffer_shape = np.asarray(send_buffer_shape, dtype=np.int64)
        self.neighbor_ranks = P_x.neighbor_ranks(P_x.rank)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Fill the halos of the tensor, and return it."""
        core = self._core
        if core is None or not core.active:
            return input.clone()
        axes = [self._sides(input.shape, dim) for dim in range(input.dim())]
        return apply(HaloExchangeFunction, input, axes, core.transport, "HaloExchange")

    def _sides(self, shape: Sequence[int], dim: int) -> list[Side]:
        """Return the neighbours along one axis, with the boxes that are exchanged."""
        before, after = (int(width) for width in self.halo_shape[dim])
        stop = shape[dim] - after
        gets = [int(width) for width in self.recv_buffer_shape[dim]]
        gives = [int(width) for width in self.send_buffer_shape[dim]]
        bulks = [slice(before, before + gives[0]), slice(stop - gives[1], stop)]
        ghosts = [slice(before - gets[0], before), slice(stop, stop + gets[1])]
        return [
            Side(peer, self._box(shape, dim, bulk), self._box(shape, dim, ghost))
            for peer, bulk, ghost in zip(self.neighbor_ranks[dim], bulks, ghosts, strict=True)
            if peer >= 0
        ]

    def _box(self, shape: Sequence[int], dim: int, along: slice) -> Box:
        """Return a box: all of the dims that were exchanged before, the bulk of the others."""
        return tuple(
            along
            if each == dim
            else slice(0, length)
            if each < dim
            else slice(int(self.halo_shape[each][0]), length - int(self.halo_shape[each][1]))
            for each, length in enumerate(shape)
        )
