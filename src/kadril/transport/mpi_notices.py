"""The board of an MPI communicator: what the groups of ranks that talk over it have in common.

All groups share one duplicate of the communicator that the user gave, and tell their messages apart
by tags. A communicator of its own for each group would be neither cheap nor safe: an MPI has some
thousands of them, making one is an agreement of all its ranks, and a freed one's number may be
given to a new one, where a message that is still under way would turn up. The number of a group is
made of its first rank and a count of that rank's, so no two groups ever have the same one, whoever
makes groups at the same time.

MPI has no way to wake a rank that waits for a message which will never come. So a rank that leaves
a group sends a notice to each of its members, and ranks that wait look for notices now and then.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from kadril.errors import StateError
from kadril.transport.ending import MAX_BYTES, Ending

__all__ = ["NoticeBoard"]

NOTICE_TAG = 0
TAGS_PER_GROUP = 2
ID_BYTES = 8
MAX_GROUPS = 4096  # whose notices are kept; those that are read and never asked for are dropped


class NoticeBoard:
    """Numbers groups, sends notices, and keeps those that came.

    Ranks are those of the board's communicator.

    Attributes:
        comm: a duplicate of the user's communicator, for all groups.
    """

    _keyval: int | None = None

    def __init__(self, comm: MPI.Intracomm) -> None:
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # which mpi4py turns into exceptions
        self.comm = comm
        # Of two threads that see the same message, only one can receive it.
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._max_tag = int(comm.Get_attr(MPI.TAG_UB) or 32767)  # what any MPI has to have
        self._num_open = 0
        self._is_deserted = False
        self._kept: OrderedDict[int, dict[int, Ending]] = OrderedDict()
        self._sent: list[tuple[MPI.Request, npt.NDArray[np.uint8]]] = []

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> NoticeBoard:
        """The board of a communicator, made at first use; collective over it."""
        if cls._keyval is None:
            cls._keyval = MPI.Comm.Create_keyval(delete_fn=free_board)
        board = comm.Get_attr(cls._keyval)
        if not isinstance(board, cls):
            board = cls(comm.Dup())
            comm.Set_attr(cls._keyval, board)
        return board

    def new_number(self) -> int:
        """A number that no other group has or had, for one whose first rank is this one."""
        return next(self._numbers) * self.comm.Get_size() + self.comm.Get_rank()

    def agree_on_number(self) -> int:
        """A number for a group of all ranks; collective over them."""
        number = np.array([self.new_number()], dtype=np.int64)
        self.comm.Bcast(number, root=0)
        return int(number[0])

    def open_group(self, number: int) -> int:
        """Take part in a group; return the first of its tags.

        Raises:
            StateError: this MPI has no more tags.
        """
        tag = NOTICE_TAG + 1 + number * TAGS_PER_GROUP
        if tag + TAGS_PER_GROUP > self._max_tag:
            raise StateError(
                f"this MPI has tags up to {self._max_tag}, and all are taken by groups of ranks"
                " that were made before; make groups once and keep them"
            )
        with self._lock:
            self._num_open += 1
        return tag

    def close_group(self, group: int) -> None:
        """Take part in a group no longer: forget its notices."""
        with self._lock:
            self._num_open -= 1
            try:
                self.read(group)
                self._kept.pop(group, None)
            finally:
                self._free_if_unused()

    def desert(self) -> None:
        """The user has freed the communicator: the last group to close frees the duplicate."""
        with self._lock:
            self._is_deserted = True
            self._free_if_unused()

    def _free_if_unused(self) -> None:
        if self._is_deserted and self._num_open == 0 and not MPI.Is_finalized():
            self.comm.Free()

    def post(self, group: int, ending: Ending, ranks: Sequence[int]) -> None:
        """Tell ranks why this one leaves a group."""
        data = np.zeros(ID_BYTES + MAX_BYTES, dtype=np.uint8)
        text = group.to_bytes(ID_BYTES, "little") + ending.encode()
        data[: len(text)] = np.frombuffer(text, dtype=np.uint8)
        with self._lock:
            self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
            for rank in ranks:
                self._sent.append((self.comm.Isend([data, MPI.BYTE], rank, NOTICE_TAG), data))

    def read(self, group: int) -> dict[int, Ending]:
        """Return why ranks have left a group, by rank, as far as notices have come."""
        status = MPI.Status()
        with self._lock:
            while self.comm.Iprobe(MPI.ANY_SOURCE, NOTICE_TAG, status):
                self._receive(status.Get_source())
            return dict(self._kept.get(group, {}))

    def _receive(self, source: int) -> None:
        data = np.zeros(ID_BYTES + MAX_BYTES, dtype=np.uint8)
        self.comm.Recv([data, MPI.BYTE], source, NOTICE_TAG)
        text = data.tobytes()
        ending = Ending.decode(text[ID_BYTES:].rstrip(b"\0"))
        group = int.from_bytes(text[:ID_BYTES], "little")
        self._kept.setdefault(group, {})[source] = ending
        while len(self._kept) > MAX_GROUPS:
            self._kept.popitem(last=False)


def free_board(comm: MPI.Comm, keyval: int, board: NoticeBoard) -> None:
    """Give the board up when the user frees its communicator; called by MPI."""
    board.desert()
