"""The shared-memory transport: ranks of one host, through the native core.

The world's channel lies at a fixed place in the segment; further ones are made by `split()`.
Memory from `shared_memory.empty` lies in the segment too, and collectives on it move nothing that
need not move.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from kadril import _native
from kadril.config import Config
from kadril.errors import NoRoomError
from kadril.transport import checks
from kadril.transport.base import LateListener, Transport
from kadril.transport.buffer import Array, Buffer
from kadril.transport.failures import to_exception
from kadril.transport.hub_protocol import Hub
from kadril.transport.operands import CheckedAllToAll, CheckedMessage, CheckedReduction, Op
from kadril.transport.segment import Waiting, choose_waiting, open_segment, watch_peers
from kadril.transport.shared_memory import SharedMemory
from kadril.transport.standpoint import Standpoint

__all__ = ["ShmTransport"]

logger = logging.getLogger("kadril")


class ShmTransport(Transport):
    """Moves memory between ranks of one host; see the protocol in `base.py` for its members."""

    kind = "shm"
    takes_any_thread = True
    overlaps = False
    reaches_devices = False

    def __init__(
        self,
        segment: _native.Segment,
        waiting: Waiting,
        *,
        board: int | None,
        owns_board: bool,
        rank: int,
        local_ranks: Sequence[int],
        world_ranks: Sequence[int],
    ) -> None:
        self.rank = rank
        self.size = len(local_ranks)
        self.world_ranks = tuple(world_ranks)
        self._segment = segment
        self._waiting = waiting
        self._local_ranks = tuple(local_ranks)  # in the segment, of each rank of this group
        # Not a method of the transport: the channel would keep its own transport alive.
        self._late_report = LateReport(self.world_ranks, rank)
        self._channel = segment.open_channel(
            board,
            list(local_ranks),
            rank,
            owns_board,
            *waiting,
            on_late=self._late_report,
            describe=Standpoint(self.world_ranks, rank),
        )
        self.shared_memory = SharedMemory(
            segment, self._channel, self._local_ranks[rank], self.world_ranks
        )

    @classmethod
    def open(cls, hub: Hub, config: Config, world_ranks: Sequence[int]) -> ShmTransport:
        """Make the transport of all ranks of a hub; collective over the hub.

        Raises:
            NoRoomError: the segment cannot be made or mapped on some rank; raised on all.
            RendezvousError: a rank did not get through; raised on all.
        """
        segment = open_segment(hub, config)
        watch_peers(hub, segment)
        waiting = choose_waiting(hub, config)
        return cls(
            segment,
            waiting,
            board=None,
            owns_board=False,
            rank=hub.rank,
            local_ranks=range(hub.size),
            world_ranks=world_ranks,
        )

    @property
    def on_late(self) -> LateListener | None:
        """Told of the ranks that a call waits for; where None, they are logged."""
        return self._late_report.listener

    @on_late.setter
    def on_late(self, listener: LateListener | None) -> None:
        self._late_report.listener = listener

    def allreduce(
        self,
        array: Array,
        op: Op = "sum",
        *,
        out: Array | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: str = "",
    ) -> None:
        """Reduce over all ranks; every rank gets the result."""
        if out is None:
            # The quick way: the core looks at a torch tensor itself, unless there is something to
            # check, and perhaps to complain about.
            failure = self._channel.allreduce_tensor(array, op, prescale, postscale, name)
            if failure is None:
                return
            if failure is not NotImplemented:
                raise to_exception(failure, self.world_ranks)
        super().allreduce(array, op, out=out, prescale=prescale, postscale=postscale, name=name)

    def _raise_if(self, failure: _native.Failure | None) -> None:
        """Raise what the core reports, if it does."""
        if failure is not None:
            raise to_exception(failure, self.world_ranks)

    def _run_allreduce(self, reduction: CheckedReduction) -> None:
        source, target, _, op_code, prescale, postscale, name = reduction
        failure = self._channel.allreduce(
            source.address,
            target.address,
            shape=source.shape,
            dtype=source.dtype.code,
            op=op_code,
            prescale=prescale,
            postscale=postscale,
            name=name,
        )
        self._raise_if(failure)

    def _run_reduce(self, reduction: CheckedReduction, root: int) -> None:
        source, target, _, op_code, prescale, postscale, name = reduction
        failure = self._channel.reduce(
            source.address,
            target.address,
            shape=source.shape,
            dtype=source.dtype.code,
            op=op_code,
            root=root,
            prescale=prescale,
            postscale=postscale,
            name=name,
        )
        self._raise_if(failure)

    def _run_broadcast(self, memory: Buffer, root: int, name: str) -> None:
        failure = self._channel.broadcast(
            memory.address, memory.shape, memory.dtype.code, root, name
        )
        self._raise_if(failure)

    def _run_allgatherv(
        self, source: Buffer, target: Buffer, counts: Sequence[int], name: str
    ) -> None:
        failure = self._channel.allgatherv(
            source.address, target.address, counts, source.dtype.code, name
        )
        self._raise_if(failure)

    def allgather_bytes(self, data: bytes, *, name: str = "") -> list[bytes]:
        """Return a few bytes of each rank; much quicker than by an array."""
        found = self._channel.allgather_bytes(data, name)
        if isinstance(found, list):
            return found
        raise to_exception(found, self.world_ranks)

    def _run_reduce_scatterv(self, reduction: CheckedReduction, counts: Sequence[int]) -> None:
        source, target, _, op_code, prescale, postscale, name = reduction
        failure = self._channel.reduce_scatterv(
            source.address,
            target.address,
            counts=counts,
            dtype=source.dtype.code,
            op=op_code,
            prescale=prescale,
            postscale=postscale,
            name=name,
        )
        self._raise_if(failure)

    def _run_alltoallv(self, arguments: CheckedAllToAll) -> None:
        source, send_counts, target, recv_counts, name = arguments
        failure = self._channel.alltoallv(
            source.address, send_counts, target.address, recv_counts, source.dtype.code, name
        )
        self._raise_if(failure)

    def _run_exchange(
        self, sends: Sequence[CheckedMessage], recvs: Sequence[CheckedMessage], name: str
    ) -> None:
        failure = self._channel.exchange(native_messages(sends), native_messages(recvs), name)
        self._raise_if(failure)

    def barrier(self, *, name: str = "") -> None:
        """Return when every rank has called it."""
        failure = self._channel.barrier(name)
        self._raise_if(failure)

    def split(self, color: int | None, *, key: int | None = None) -> ShmTransport | None:
        """Make a transport for each set of ranks that give the same color."""
        color, key = checks.check_split(color, key, self.rank)
        members = self._members(color, key)
        board = self._share_board(members)
        if not members:
            return None
        return ShmTransport(
            self._segment,
            self._waiting,
            board=board,
            owns_board=members[0] == self.rank,
            rank=members.index(self.rank),
            local_ranks=[self._local_ranks[member] for member in members],
            world_ranks=[self.world_ranks[member] for member in members],
        )

    def duplicate(self, *, patience: float, stall_warning: float) -> ShmTransport:
        """Make another transport of the same ranks, which waits otherwise; collective."""
        waiting = self._waiting._replace(patience=patience, warn_after=stall_warning)
        return ShmTransport(
            self._segment,
            waiting,
            board=self._share_board(range(self.size)),
            owns_board=self.rank == 0,
            rank=self.rank,
            local_ranks=self._local_ranks,
            world_ranks=self.world_ranks,
        )

    def revoke(self, reason: str = "") -> None:
        """Give the group up, for everyone."""
        logger.warning(
            "rank %d revokes a group: %s", self.world_ranks[self.rank], reason or "no reason given"
        )
        self._channel.revoke()

    def close(self) -> None:
        """Leave the group."""
        self._channel.close()

    def _members(self, color: int | None, key: int) -> list[int]:
        """The ranks of this group that gave the same color, ordered by key."""
        mine = np.array([color is not None, color or 0, key], dtype=np.int64)
        everyone = np.empty((self.size, 3), dtype=np.int64)
        self.allgatherv(mine, everyone, [3] * self.size, name="split")
        if color is None:
            return []
        same = [
            rank for rank in range(self.size) if everyone[rank, 0] and everyone[rank, 1] == color
        ]
        return sorted(same, key=lambda rank: (everyone[rank, 2], rank))

    def _share_board(self, members: Sequence[int]) -> int:
        """The first member makes the board of the new channel; all learn where it lies."""
        mine = np.zeros(1, dtype=np.int64)
        failure: _native.Failure | None = None
        if members and members[0] == self.rank:
            board = self._segment.allocate_board(self._local_ranks[self.rank], len(members))
            if isinstance(board, _native.Failure):
                failure, board = board, -1
            mine[0] = board
        boards = np.empty(self.size, dtype=np.int64)
        self.allgatherv(mine, boards, [1] * self.size, name="split")
        self._raise_if(failure)
        if -1 in boards:
            rank = self.world_ranks[int(np.argmin(boards))]
            raise NoRoomError(
                f"rank {rank} had no room for the channel of a new group; see its own error"
            )
        return int(boards[members[0]]) if members else 0


class LateReport:
    """Tells whom a waiting call waits for; the native core calls it now and then."""

    def __init__(self, world_ranks: Sequence[int], rank: int) -> None:
        self.world_ranks = world_ranks
        self.rank = rank
        self.listener: LateListener | None = None

    def __call__(self, call: str, members: Sequence[int], stopped: bool, elapsed: float) -> None:
        """Tell the listener, or the log where there is none."""
        late = [self.world_ranks[member] for member in members]
        if self.listener is not None:
            self.listener(late, elapsed)
            return
        logger.warning(
            "rank %d has waited %.0f s in %s for rank(s) %s%s",
            self.world_ranks[self.rank],
            elapsed,
            call,
            ", ".join(map(str, late)),
            " (stopped by a signal or a debugger)" if stopped else "",
        )


def native_messages(messages: Sequence[CheckedMessage]) -> list[tuple[int, int, int, int]]:
    """Messages as the native core takes them: (peer, dtype, address, bytes)."""
    return [
        (message.peer, message.buffer.dtype.code, message.buffer.address, message.buffer.nbytes)
        for message in messages
    ]
