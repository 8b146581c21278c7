"""MPI as a transport, by mpi4py.

MPI moves bytes (`MPI.BYTE`) and nothing else: element types, ops and the order of additions are
ours, so that any MPI gives the same bits as shared memory. Messages go on a duplicate of the
communicator that was given, so they never meet the user's own; all groups share it
(`mpi_notices.py`).

Waiting is done by looking, since MPI cannot wait for a limited time: at first without pause, then
with pauses that grow to a millisecond. So a rank that is late is named, an interrupt is seen, and a
rank that left says so (`mpi_notices.py`). A rank that dies takes the whole job with it, as MPI has
it, unless the job runs with fault tolerance (Open MPI: `mpirun --with-ft ulfm`); then it is a
`PeerLost` with its rank.

MPI is neither initialized nor finalized here: whoever imported mpi4py did that.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from kadril.config import Config
from kadril.errors import KadrilError, StateError
from kadril.transport.buffer import Memory
from kadril.transport.call import Call
from kadril.transport.mpi_notices import NoticeBoard
from kadril.transport.network_group import Completion, Packet
from kadril.transport.network_transport import NetworkTransport
from kadril.transport.slicing import chunks_of

__all__ = ["MpiTransport"]

MEETING, PACKET = 0, 1  # of the tags of a group
MAX_MESSAGE = 1 << 30  # bytes; counts of MPI before version 4 end at 2^31
SPIN_TIME = 1e-3  # seconds of looking without a pause, for a meeting
SPIN_TIME_PER_BYTE = 1e-8  # more for data, which moves only while somebody looks
FIRST_PAUSE = 20e-6
LAST_PAUSE = {MEETING: 1e-3, PACKET: 50e-6}  # ranks may be long in coming, data is not
NOTICE_INTERVAL = 0.01

logger = logging.getLogger("kadril")

# MPIs that are not thread-safe are called by one thread at a time.
only_one = threading.RLock()

# Messages of groups that failed: MPI may still use their memory.
abandoned: list[object] = []


class Pending(NamedTuple):
    """A message under way, and the peer it comes from or goes to."""

    peer: int
    request: MPI.Request
    memory: npt.NDArray[np.uint8]


class MpiTransport(NetworkTransport):
    """A group of ranks connected by MPI."""

    kind = "mpi"
    moves_by_mpi = True

    @classmethod
    def open(
        cls, comm: MPI.Intracomm, *, world_ranks: Sequence[int], config: Config
    ) -> MpiTransport:
        """Make the transport of a communicator; collective over it, and it stays the caller's.

        Args:
            comm: whose ranks the group has, in its order.
            world_ranks: world rank of each.
            config: `patience` and `stall_warning` are used.
        """
        board = NoticeBoard.of(comm)
        number = board.agree_on_number()
        return cls(board, range(comm.Get_size()), world_ranks, config, number)

    def __init__(
        self,
        board: NoticeBoard,
        board_ranks: Sequence[int],
        world_ranks: Sequence[int],
        config: Config,
        number: int,
    ) -> None:
        rank = board_ranks.index(board.comm.Get_rank())
        super().__init__(rank, len(board_ranks), world_ranks, config)
        self._board = board
        self._board_ranks = tuple(board_ranks)
        self._number = number
        self._first_tag = board.open_group(number)
        self._last_notice = 0.0
        self._under_way: list[list[Pending]] = []
        level = MPI.Query_thread()
        self._turn: AbstractContextManager[object] = (
            nullcontext() if level == MPI.THREAD_MULTIPLE else only_one
        )
        self.takes_any_thread = level >= MPI.THREAD_SERIALIZED
        self._maker = threading.get_ident()

    def _check_usable(self, call: Call) -> None:
        super()._check_usable(call)
        if not self.takes_any_thread and threading.get_ident() != self._maker:
            raise StateError(
                f"{call.text}: this MPI was initialized for one thread only, and this is another;"
                " set mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI is imported"
            )

    def _new_number(self) -> int:
        return self._board.new_number()

    def _subgroup(self, members: Sequence[int], label: str, number: int) -> MpiTransport:
        board_ranks = [self._board_ranks[rank] for rank in members]
        world_ranks = [self.world_ranks[rank] for rank in members]
        return MpiTransport(self._board, board_ranks, world_ranks, self.config, number)

    # Movers.

    def _meet(self, record: Memory) -> Memory:
        rows = np.empty((self.size, record.size), dtype=np.uint8)
        rows[self.rank] = record
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        self._raise_obstacle()  # the group may have been given up while this rank was busy
        meeting = self._start(
            [(rank, record) for rank in others],
            [(rank, rows[rank]) for rank in reversed(others)],
            MEETING,
        )
        self._finish(meeting, LAST_PAUSE[MEETING])
        return rows

    def _start_exchange(self, sends: Sequence[Packet], recvs: Sequence[Packet]) -> Completion:
        return functools.partial(
            self._finish, self._start(sends, recvs, PACKET), LAST_PAUSE[PACKET]
        )

    def _start(self, sends: Sequence[Packet], recvs: Sequence[Packet], kind: int) -> list[Pending]:
        """Start messages. Those that were never finished are kept when this rank leaves."""
        pending: list[Pending] = []
        self._under_way.append(pending)
        comm, tag, there = self._board.comm, self._first_tag + kind, self._board_ranks
        try:
            with self._turn:
                for peer, memory in pieces(recvs):
                    request = comm.Irecv([memory, MPI.BYTE], there[peer], tag)
                    pending.append(Pending(peer, request, memory))
                for peer, memory in pieces(sends):
                    request = comm.Isend([memory, MPI.BYTE], there[peer], tag)
                    pending.append(Pending(peer, request, memory))
        except MPI.Exception as error:
            raise self._verdict(error, pending) from error
        return pending

    def _finish(self, pending: list[Pending], last_pause: float) -> None:
        """Look until messages are through."""
        self._begin_wait()
        try:
            self._look_until_done(pending, last_pause)
        except MPI.Exception as error:
            raise self._verdict(error, pending) from error
        self._under_way = [each for each in self._under_way if each is not pending]

    def _look_until_done(self, pending: list[Pending], last_pause: float) -> None:
        """Look until all messages are through; those that are leave the list."""
        num_bytes = sum(message.memory.size for message in pending)
        end_of_spin = time.monotonic() + SPIN_TIME + num_bytes * SPIN_TIME_PER_BYTE
        pause, is_warned = FIRST_PAUSE, False
        while True:
            with self._turn:
                pending[:] = [message for message in pending if not message.request.Test()]
            if not pending:
                return
            now = time.monotonic()
            if now < end_of_spin:
                time.sleep(0)  # lets another thread, or another rank on this core, continue
                continue
            if now - self._last_notice > NOTICE_INTERVAL:
                self._last_notice = now
                is_warned = self._look_around(pending, is_warned)
            time.sleep(pause)
            pause = min(pause * 1.5, last_pause)

    def _leave(self, failure: KadrilError | None) -> None:
        others = [rank for index, rank in enumerate(self._board_ranks) if index != self.rank]
        abandoned.extend(self._under_way)
        try:
            with self._turn:
                try:
                    self._board.post(self._number, self._ending_of(failure), others)
                finally:
                    self._board.close_group(self._number)
        except MPI.Exception as error:
            logger.debug("rank %d cannot say why it leaves: %s", self.world_ranks[self.rank], error)

    # Failures.

    def _look_around(self, pending: Sequence[Pending], is_warned: bool) -> bool:
        """Check whether the call can still complete; return whether a warning was logged."""
        self._check_wait()
        self._raise_obstacle()
        waited = self._waited()
        if waited <= min(self.config.patience, self.config.stall_warning):
            return is_warned
        late = sorted({self.world_ranks[message.peer] for message in pending})
        if waited > self.config.patience:
            raise self._failed_call().late(late, self.config.patience)
        if not is_warned:
            self._report_late(late, waited)
        return True

    def _raise_obstacle(self) -> None:
        """Raise if a rank has said that it left before it completed this call."""
        with self._turn:
            notices = self._board.read(self._number)
        endings = {
            rank: notices[there] for rank, there in enumerate(self._board_ranks) if there in notices
        }
        obstacle = self._obstacle(endings)
        if obstacle is not None:
            raise obstacle

    def _verdict(self, error: MPI.Exception, pending: Sequence[Pending]) -> KadrilError:
        """Return the error for what MPI says."""
        call = self._failed_call(f"MPI says: {error.Get_error_string()}")
        failed = self._failed_ranks()
        if failed:
            return call.lost([self.world_ranks[rank] for rank in failed[:1]])
        if error.Get_error_class() == MPI.ERR_REVOKED:
            return call.lost(sorted({self.world_ranks[message.peer] for message in pending}))
        return call.unknown("MPI")

    def _failed_ranks(self) -> list[int]:
        """Ranks of this group that MPI knows to be dead; only a fault-tolerant one knows."""
        comm = self._board.comm
        try:
            failed = comm.Get_failed()
        except (NotImplementedError, MPI.Exception):
            return []
        there = MPI.Group.Translate_ranks(failed, None, comm.Get_group())
        return [self._board_ranks.index(rank) for rank in there if rank in self._board_ranks]


def pieces(packets: Sequence[Packet]) -> list[tuple[int, npt.NDArray[np.uint8]]]:
    """Packets as MPI takes them: arrays of a length that any MPI can count."""
    return [
        (peer, memory[begin:end])
        for peer, memory in packets
        for begin, end in chunks_of(memory.size, MAX_MESSAGE)
    ]
