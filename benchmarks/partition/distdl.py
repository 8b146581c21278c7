"""Movements of data as DistDL makes them, call for call: mpi4py, NumPy buffers, a hook that looks.

In the words of its version 0.5:

- a module looks, before each call, whether shape, dtype or requires_grad of its input have changed;
  what follows from them (slices, buffers) is made once
- a sum:   x as a NumPy array, Iallreduce into zeros, Waitall, the result copied into a tensor
- a halo:  a tensor padded by `F.pad` is worked on in place; dim by dim, also those that are not
           split, edges are copied into kept buffers, at most two messages go out and two come in,
           and a loop of Waitany copies what came to where it belongs
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from mpi4py import MPI

__all__ = ["DistdlHalo", "DistdlSum"]

NUMPY_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


class TensorStructure:
    """Structure of its input that a module remembers."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.requires_grad = tensor.requires_grad

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TensorStructure)
            and self.shape == other.shape
            and self.dtype == other.dtype
            and self.requires_grad == other.requires_grad
        )

    __hash__ = None  # type: ignore[assignment]


class DistdlModule(torch.nn.Module):
    """A module that is set up for its input before a call, where that has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_set_up = False
        self.structure: TensorStructure | None = None
        self.register_forward_pre_hook(self.before)

    @staticmethod
    def before(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        """Look at the input."""
        if module.requires_reset(inputs):
            module.set_up(inputs[0])
            module.structure = TensorStructure(inputs[0])
            module.is_set_up = True

    def requires_reset(self, inputs: tuple[torch.Tensor, ...]) -> bool:
        """Whether it has changed."""
        return not self.is_set_up or self.structure != TensorStructure(inputs[0])

    def set_up(self, x: torch.Tensor) -> None:
        """Prepare."""


class DistdlSum(DistdlModule):
    """The sum over all ranks."""

    def __init__(self, comm: MPI.Comm) -> None:
        super().__init__()
        self.comm = comm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sum."""
        return SumFunction.apply(x, self.comm, self.structure, self.structure)


class SumFunction(torch.autograd.Function):
    """The sum, forward only: that is what is measured."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, comm: MPI.Comm, before: TensorStructure, after: TensorStructure
    ) -> torch.Tensor:
        """Through NumPy arrays."""
        ctx.comm, ctx.before, ctx.after, ctx.device = comm, before, after, x.device
        torch.empty(0, device=x.device)  # the result of a worker that takes no part
        reduced = np.zeros(before.shape, dtype=NUMPY_DTYPES[before.dtype])
        source = x.detach().cpu().numpy()
        requests = [comm.Iallreduce(source, reduced, op=MPI.SUM)]
        MPI.Request.Waitall(requests)
        return torch.tensor(reduced, requires_grad=after.requires_grad, device=x.device)


class Side(NamedTuple):
    """One end of a dim, where there is a neighbour.

    Attributes:
        rank: of the neighbour.
        bulk: what it gets.
        ghost: what comes from it.
        sent: buffers for the former, by shape.
        got: buffers for the latter.
    """

    rank: int
    bulk: tuple[slice, ...]
    ghost: tuple[slice, ...]
    sent: dict[tuple[int, ...], np.ndarray[Any, Any]]
    got: dict[tuple[int, ...], np.ndarray[Any, Any]]


class DistdlHalo(torch.nn.Module):
    """The block with a row more on each side of one dim; zeros beyond the edge. Two ranks.

    Args:
        comm: both ranks.
        dim: which is split.
        padding: as `F.pad` takes it.
    """

    def __init__(self, comm: MPI.Comm, dim: int, padding: tuple[int, ...]) -> None:
        super().__init__()
        self.exchange = DistdlExchange(comm, dim)
        self.padding = padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pad, and exchange, as its layers do."""
        return self.exchange(F.pad(x, pad=self.padding, mode="constant", value=0))


class DistdlExchange(DistdlModule):
    """The exchange itself, in a tensor that has room for it."""

    def __init__(self, comm: MPI.Comm, dim: int) -> None:
        super().__init__()
        self.comm = comm
        self.dim = dim
        self.sides: list[tuple[Side | None, Side | None]] = []

    def set_up(self, x: torch.Tensor) -> None:
        """Slices and buffers: for each dim, before and after."""
        self.sides = [(None, None)] * x.dim()
        whole = [slice(0, size) for size in x.shape]
        last = x.shape[self.dim]

        def rows(start: int) -> tuple[slice, ...]:
            return (*whole[: self.dim], slice(start, start + 1), *whole[self.dim + 1 :])

        def side(rank: int, bulk: int, ghost: int) -> Side:
            shape = tuple(each.stop - each.start for each in rows(bulk))
            dtype = NUMPY_DTYPES[x.dtype]
            buffers = [{shape: np.empty(shape, dtype=dtype)} for _ in range(2)]
            return Side(rank, rows(bulk), rows(ghost), *buffers)

        if self.comm.rank == 0:
            self.sides[self.dim] = (None, side(1, last - 2, last - 1))
        else:
            self.sides[self.dim] = (side(0, 1, 0), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Exchange."""
        return ExchangeFunction.apply(x, self.comm, self.sides)


class ExchangeFunction(torch.autograd.Function):
    """The exchange in place, forward only: that is what is measured."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, comm: MPI.Comm, sides: list[tuple[Side | None, Side | None]]
    ) -> torch.Tensor:
        """Dim by dim."""
        ctx.comm, ctx.sides = comm, sides
        ctx.mark_dirty(x)
        array = x.detach().numpy()
        for left, right in sides:
            exchange_dim(array, comm, left, right)
        return x


def exchange_dim(
    array: np.ndarray[Any, Any], comm: MPI.Comm, left: Side | None, right: Side | None
) -> None:
    """Both ends of a dim."""
    left_sent, left_got = views_of(left)
    right_sent, right_got = views_of(right)
    if left is not None:
        np.copyto(left_sent, array[left.bulk])
    if right is not None:
        np.copyto(right_sent, array[right.bulk])
    null = MPI.REQUEST_NULL
    requests = [
        comm.Irecv(left_got, source=left.rank, tag=1) if left is not None else null,
        comm.Irecv(right_got, source=right.rank, tag=0) if right is not None else null,
        comm.Isend(left_sent, dest=left.rank, tag=0) if left is not None else null,
        comm.Isend(right_sent, dest=right.rank, tag=1) if right is not None else null,
    ]
    for _ in requests:
        status = MPI.Status()
        index = MPI.Request.Waitany(requests, status)
        if index == 0 and left is not None:
            np.copyto(array[left.ghost], left_got)
        elif index == 1 and right is not None:
            np.copyto(array[right.ghost], right_got)


def views_of(side: Side | None) -> tuple[Any, Any]:
    """The buffers of one end, in the shape of what goes through them."""
    if side is None:
        return None, None
    return side.sent[shape_of(side.bulk)], side.got[shape_of(side.ghost)]


def shape_of(slices: tuple[slice, ...]) -> tuple[int, ...]:
    """Return the shape of what slices cut out."""
    return tuple([each.stop - each.start for each in slices])
