"""Notices between the ranks of an MPI job: why a rank has left a group.

MPI has no way to wake a rank that waits for a message which will never come. So a rank that leaves
a group sends a notice to each of its members, and ranks that wait look for notices now and then.

Notices travel on a communicator of their own, one per communicator that the user gave, which lives
as long as that: an MPI may give the number of a freed communicator to a new one, and a late notice
would turn up there.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from kadril.transport.ending import MAX_BYTES, Ending

__all__ = ["NoticeBoard"]

TAG = 7
ID_BYTES = 16
MAX_GROUPS = 4096  # whose notices are kept; those that are read and never asked for are dropped


class NoticeBoard:
    """Sends notices, and keeps those that came.

    Groups are known by a label that all their ranks make alike. Ranks are those of the board's
    communicator.
    """

    _keyval: int | None = None

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.num_groups = 0  # opened on this board: the ranks of one communicator count alike
        self._kept: OrderedDict[bytes, dict[int, Ending]] = OrderedDict()
        self._sent: list[tuple[MPI.Request, npt.NDArray[np.uint8]]] = []

    @classmethod
    def of(cls, comm: MPI.Comm) -> NoticeBoard:
        """The board of a communicator, made at first use; collective over it."""
        if cls._keyval is None:
            cls._keyval = MPI.Comm.Create_keyval(delete_fn=free_board)
        board = comm.Get_attr(cls._keyval)
        if not isinstance(board, cls):
            board = cls(comm.Dup())
            board.comm.Set_errhandler(MPI.ERRORS_RETURN)
            comm.Set_attr(cls._keyval, board)
        return board

    def post(self, group: str, ending: Ending, ranks: Sequence[int]) -> None:
        """Tell ranks why this one leaves a group."""
        data = np.zeros(ID_BYTES + MAX_BYTES, dtype=np.uint8)
        text = group_id(group) + ending.encode()
        data[: len(text)] = np.frombuffer(text, dtype=np.uint8)
        self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
        for rank in ranks:
            self._sent.append((self.comm.Isend([data, MPI.BYTE], rank, TAG), data))

    def read(self, group: str) -> dict[int, Ending]:
        """Why ranks have left a group, by rank, as far as has come."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, TAG, status):
            self._receive(status.Get_source())
        return self._kept.get(group_id(group), {})

    def drop(self, group: str) -> None:
        """Forget the notices of a group that this rank has left."""
        self.read(group)
        self._kept.pop(group_id(group), None)

    def _receive(self, source: int) -> None:
        data = np.zeros(ID_BYTES + MAX_BYTES, dtype=np.uint8)
        self.comm.Recv([data, MPI.BYTE], source, TAG)
        text = data.tobytes()
        ending = Ending.decode(text[ID_BYTES:].rstrip(b"\0"))
        self._kept.setdefault(text[:ID_BYTES], {})[source] = ending
        while len(self._kept) > MAX_GROUPS:
            self._kept.popitem(last=False)


def free_board(comm: MPI.Comm, keyval: int, board: NoticeBoard) -> None:
    """When the user frees a communicator, its board is of no use."""
    if not MPI.Is_finalized():
        board.comm.Free()


def group_id(label: str) -> bytes:
    """A label of any length as a few bytes."""
    return hashlib.blake2b(label.encode(), digest_size=ID_BYTES).digest()
