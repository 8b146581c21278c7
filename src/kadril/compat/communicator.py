"""Communicators with mpi4py's methods, over groups of `kadril.partition`.

As in mpi4py, capitalized methods take arrays, and lower-case ones any object that can be pickled.
Objects come from ranks of this job only, which proved at rendezvous that they know its secret.

All methods are collective over the group. There is no `send` or `recv`, and nothing that returns a
request: a transport moves data in program order, all ranks together.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from kadril.compat.array_buffer import as_array, contiguous, empty_like, is_in_place, shaped
from kadril.compat.reduction_op import OPS, op_name, op_of
from kadril.partition import Group
from kadril.transport.base import Transport

__all__ = ["COMM_NULL", "GROUP_NULL", "UNDEFINED", "Communicator", "Null"]

UNDEFINED = -32766


class Null:
    """A null handle, such as COMM_NULL; it is false."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return self.name


COMM_NULL = Null("COMM_NULL")
GROUP_NULL = Null("GROUP_NULL")


class Communicator:
    """A stand-in for `mpi4py.MPI.Comm`.

    Args:
        find_group: returns its ranks, connected. It is called at the first use, since for
            COMM_WORLD it calls `kadril.init()`.
    """

    def __init__(self, find_group: Callable[[], Group]) -> None:
        self._find_group = find_group

    @functools.cached_property
    def group(self) -> Group:
        """The ranks, connected."""
        return self._find_group()

    @property
    def _transport(self) -> Transport:
        return self.group.transport

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self._transport.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._transport.size

    def __getattr__(self, name: str) -> NoReturn:
        known = ", ".join(each for each in dir(type(self)) if not each.startswith("_"))
        raise AttributeError(
            f"this communicator is kadril's stand-in for mpi4py's, and has no {name!r}; it has"
            f" {known}. Under mpirun, MPI.COMM_WORLD is mpi4py's own"
        )

    # ruff: noqa: N802 - the names are mpi4py's
    def Get_rank(self) -> int:
        """Return the rank of this process."""
        return self.rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self.size

    def Get_name(self) -> str:
        """Return a name that lists the ranks."""
        return f"kadril ranks {list(self.group.ranks)}"

    def Barrier(self) -> None:
        """Wait for all ranks."""
        self._transport.barrier(name="Barrier")

    barrier = Barrier

    # ---- arrays ---------------------------------------------------------------------------------

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Copy the root's array into that of every rank."""
        self._transport.broadcast(as_array(buf), root, name="Bcast")

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = OPS["SUM"], root: int = 0) -> None:
        """Reduce into the root's `recvbuf`."""
        name = op_name(op)
        if is_in_place(sendbuf):
            self._transport.reduce(as_array(recvbuf), root, name, name="Reduce")
            return
        given = contiguous(as_array(sendbuf))
        out = as_array(recvbuf) if self.rank == root else None
        if out is None:
            self._transport.reduce(given, root, name, name="Reduce")
        else:
            self._transport.reduce(given, root, name, out=shaped(out, given), name="Reduce")

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = OPS["SUM"]) -> None:
        """Reduce into the `recvbuf` of every rank."""
        name = op_name(op)
        out = as_array(recvbuf)
        if is_in_place(sendbuf):
            self._transport.allreduce(out, name, name="Allreduce")
        else:
            given = contiguous(as_array(sendbuf))
            self._transport.allreduce(given, name, out=shaped(out, given), name="Allreduce")

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Concatenate the arrays of all ranks on each of them."""
        given = contiguous(as_array(sendbuf))
        counts = [int(np.prod(given.shape))] * self.size
        self._transport.allgatherv(given, as_array(recvbuf), counts, name="Allgather")

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Concatenate the arrays of all ranks on the root."""
        given = contiguous(as_array(sendbuf))
        count = int(np.prod(given.shape))
        out = as_array(recvbuf) if self.rank == root else empty_like(given, count * self.size)
        self._transport.allgatherv(given, out, [count] * self.size, name="Gather")

    # ---- objects --------------------------------------------------------------------------------

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return the objects of all ranks on each of them."""
        mine = np.frombuffer(bytearray(pickle.dumps(sendobj)), dtype=np.uint8)
        sizes = np.empty(self.size, dtype=np.int64)
        size = np.array([mine.size], dtype=np.int64)
        self._transport.allgatherv(size, sizes, [1] * self.size, name="allgather")
        gathered = np.empty(int(sizes.sum()), dtype=np.uint8)
        self._transport.allgatherv(mine, gathered, sizes.tolist(), name="allgather")
        parts = np.split(gathered, np.cumsum(sizes)[:-1])
        return [pickle.loads(part.tobytes()) for part in parts]  # noqa: S301 - our own ranks

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return the objects of all ranks on the root; None elsewhere."""
        gathered = self.allgather(sendobj)
        return gathered if self.rank == root else None

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object on each rank."""
        return self.allgather(obj if self.rank == root else None)[root]

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Return to each rank its element of the root's list."""
        return self.bcast(sendobj, root)[self.rank]

    def allreduce(self, sendobj: Any, op: Any = OPS["SUM"]) -> Any:
        """Reduce the objects of all ranks, in rank order, on each of them."""
        return functools.reduce(op_of(op), self.allgather(sendobj))

    def reduce(self, sendobj: Any, op: Any = OPS["SUM"], root: int = 0) -> Any:
        """Reduce the objects of all ranks, in rank order, on the root; None elsewhere."""
        result = self.allreduce(sendobj, op)
        return result if self.rank == root else None

    # ---- other communicators --------------------------------------------------------------------

    def Split(self, color: int = 0, key: int = 0) -> Communicator | Null:
        """Return the communicator of the ranks that give the same color."""
        # Ranks with equal keys keep their order, as MPI has it.
        order = key * self.size + self.rank
        transport = self._transport.split(None if color == UNDEFINED else color, key=order)
        return COMM_NULL if transport is None else Communicator(lambda: Group(transport))

    def Dup(self) -> Communicator:
        """Return another communicator of the same ranks."""
        return Communicator(lambda: self.group)

    def Free(self) -> None:
        """Do nothing: groups last as long as their world."""
