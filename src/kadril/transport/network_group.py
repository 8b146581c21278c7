"""A group of ranks that meet over a network before each call, and compare what they call.

`NetworkGroup` is the lower half of a network transport. It holds what every call needs whatever it
moves: that the group is usable, that one thread is served at a time, that all ranks call the same,
and that a rank which fails does not leave the others waiting. The upper half,
`network_transport.py`, moves the data.

    rank 0   allreduce(float32[3], sum) --+
    rank 1   allreduce(float32[3], sum) --+-- records equal?  yes: continue, with what rode along
    rank 2   allreduce(float32[4], sum) --+                    no: MismatchError on all of them
"""

from __future__ import annotations

import abc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from kadril import _native
from kadril.config import Config
from kadril.errors import (
    ClosedError,
    ForkedError,
    KadrilError,
    MismatchError,
    PeerError,
    PeerLost,
    Revoked,
    Stalled,
    TransportError,
    UnsupportedError,
)
from kadril.transport.base import LateListener
from kadril.transport.buffer import Memory, as_bytes
from kadril.transport.call import DIGEST_BYTES, MAX_SHOWN, Call, mismatch
from kadril.transport.ending import KINDS, Ending
from kadril.transport.peer_errors import FailedCall, name_peers, reason_given, revoked_text
from kadril.transport.shared_memory import SharedMemory

__all__ = ["INLINE_BYTES", "Completion", "NetworkGroup", "Packet"]

Packet: TypeAlias = tuple[int, Memory]  # (peer, its bytes): never empty, never to oneself

Completion: TypeAlias = Callable[[], None]  # waits until the packets of an exchange are through

INLINE_BYTES = 64  # that ride along in the record of a meeting

logger = logging.getLogger("kadril")


class NetworkGroup(abc.ABC):
    """The ranks of one group, and how they meet.

    Attributes:
        kind: the name of the transport.
        rank: of this process, within the group.
        size: number of ranks.
        world_ranks: world rank of each rank of the group.
        takes_any_thread, overlaps, reaches_devices, on_late, hostnames: see `Transport`.
        config: options of the world.
        num_calls: calls that this rank has begun; equal on all ranks that meet.
        num_completed: calls that it has ended with a result, or with a mismatch.
    """

    kind: str
    takes_any_thread: bool = True
    overlaps: bool = True
    reaches_devices: bool = False
    shared_memory: SharedMemory | None = None

    def __init__(self, rank: int, size: int, world_ranks: Sequence[int], config: Config) -> None:
        if len(world_ranks) != size or not 0 <= rank < size:
            raise ValueError(
                f"rank {rank} of {size} does not fit the world ranks {list(world_ranks)}"
            )
        self.rank = rank
        self.size = size
        self.world_ranks = tuple(world_ranks)
        self.config = config
        self.num_calls = 0
        self.num_completed = 0
        self._call = Call("idle")
        self._began = 0.0  # the call
        self._since = 0.0  # the wait; a call may have several
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._leaving = threading.Lock()  # held to look at the next, not to leave
        self._has_left = False
        self._failure: KadrilError | None = None
        self._reason = ""  # given to revoke()
        self.on_late: LateListener | None = None
        self.on_look: Callable[[], None] | None = None  # of a group that stands on this one
        self.hostnames: Sequence[str] = ()

    def _report_late(self, late: Sequence[int], waited: float) -> None:
        """Tell whom a call waits for."""
        if self.on_late is not None:
            self.on_late(late, waited)
            return
        who = name_peers(late, self.hostnames)
        logger.warning("%s has waited %.0f s for %s", self._call.text, waited, who)

    # What an engine supplies.

    @abc.abstractmethod
    def _meet(self, record: Memory) -> Memory:
        """All-gather a short record: row r of the result is what rank r gave. All rows are as long.

        Ranks wait for each other here, so here a late rank is named and a dead one noticed. Never
        called in a group of one.

        Raises:
            PeerError: a rank is lost, or late beyond `config.patience`, or gave the group up.
            TransportError: the engine failed otherwise.
        """

    @abc.abstractmethod
    def _start_exchange(self, sends: Sequence[Packet], recvs: Sequence[Packet]) -> Completion:
        """Begin to carry packets between ranks that have met; return what waits for them.

        Several exchanges may be under way, and are completed in any order. Packets between the same
        two ranks arrive in the order in which they were started. Until its completion the memory
        belongs to the engine. Where a call fails the rest is never completed, and the engine keeps
        the memory for as long as it needs it. Both raise like `_meet`.
        """

    def _exchange(self, sends: Sequence[Packet], recvs: Sequence[Packet]) -> None:
        """Carry packets between ranks that have met; those between the same two arrive in order.

        Raises like `_meet`.
        """
        self._start_exchange(sends, recvs)()

    @abc.abstractmethod
    def _leave(self, failure: KadrilError | None) -> None:
        """Let go of the engine, and tell ranks that wait for this one: it failed, or closed (None).

        Called once. Another thread may be in `_meet` or in an exchange.
        """

    def _check_wait(self) -> None:
        """Raise what ends a wait from outside; called now and then while this rank waits."""
        self._check_usable(self._call)  # another thread may have closed or revoked the group
        if self.on_look is not None:
            self.on_look()

    def _raise_obstacle(self) -> None:  # noqa: B027 - an engine may have no way to know
        """Raise if a rank has said that it left before it completed this call.

        Asked now and then by ranks that wait for another than the engine.
        """

    def _note_waiting(self) -> None:  # noqa: B027 - most engines have none
        """Tell the others that this rank waits in its call, if the engine has a way to."""

    # The life of a group.

    def revoke(self, reason: str = "") -> None:
        """Give the group up: every rank that waits in it, or calls it later, raises `Revoked`."""
        if not self._closed and self._pid == os.getpid():
            me = self.world_ranks[self.rank]
            self._reason = reason
            self._fail(Revoked(revoked_text(me, reason), rank=me, operation=self._call.operation))

    def close(self) -> None:
        """Leave the group; local, and may be called again. Ranks still waiting raise `PeerLost`."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._leave_once(None)

    @contextmanager
    def _calling(self, call: Call) -> Iterator[None]:
        """Hold the group for one call; two threads are served one after the other, never mixed."""
        self._check_usable(call)
        with self._lock:
            self._check_usable(call)
            self.num_calls += 1
            self._call, self._began = call, time.monotonic()
            record = _native.begin_record(
                call.operation, call.name, id(self), self.num_calls & 0xFFFFFFFF, self.size
            )
            try:
                yield
                self.num_completed = self.num_calls
            except (MismatchError, UnsupportedError):
                self.num_completed = self.num_calls  # by all ranks alike, and nothing moved
                raise
            except ClosedError:
                raise  # by another thread, which has told the others
            except (PeerError, TransportError) as error:
                self._fail(error)
                raise
            except BaseException as error:
                # An interrupt, or no memory, in the middle of a call: the others must not wait for
                # this rank.
                self.revoke(f"{type(error).__name__} in {call.text}")
                raise
            finally:
                _native.end_record(record)

    def _check_usable(self, call: Call) -> None:
        """Raise what a call on this group has to raise, if anything."""
        if self._pid != os.getpid():
            raise ForkedError(
                f"{call.text}: this process was forked from rank {self.world_ranks[self.rank]} and"
                " is no rank itself; start workers with the 'spawn' or 'forkserver' method, or let"
                " only the parent communicate"
            )
        if self._closed:
            raise ClosedError(f"{call.text}: this group was closed; make a new one")
        if self._failure is not None:
            raise again(self._failure, call)

    def _fail(self, error: KadrilError) -> None:
        """Give the group up for good; the first error is the one that later calls raise."""
        if self._failure is None:
            self._failure = error
        self._leave_once(error)

    def _leave_once(self, failure: KadrilError | None) -> None:
        """Leave, unless this rank has left or another thread of it is just leaving."""
        with self._leaving:
            if self._has_left:
                return
            self._has_left = True
        self._leave(failure)

    def _begin_wait(self) -> None:
        """Start counting patience: a long call of many short waits needs none."""
        self._since = time.monotonic()

    def _waited(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._since

    def _ending_of(self, failure: KadrilError | None) -> Ending:
        """Return the note for the others when this rank leaves."""
        if failure is None:
            return Ending("closed", self.num_completed)
        if isinstance(failure, Revoked) and failure.rank == self.world_ranks[self.rank]:
            return Ending("revoked", self.num_completed, self.rank, self._reason)
        culprit = getattr(failure, "rank", None)
        index = self.world_ranks.index(culprit) if culprit in self.world_ranks else None
        if isinstance(failure, Revoked) and index is not None:
            return Ending("revoked", self.num_completed, index, reason_given(failure.event))
        kind = "stalled" if isinstance(failure, Stalled) else "failed"
        if isinstance(failure, PeerLost) and failure.is_certain:
            kind = "lost"
        reason = getattr(failure, "event", "") or str(failure)
        return Ending(kind, self.num_completed, index, reason)

    def _obstacle(
        self, endings: Mapping[int, Ending], kinds: Sequence[str] = KINDS
    ) -> KadrilError | None:
        """The error for this call, if a rank said that it left before completing it."""
        left = {
            rank: ending
            for rank, ending in endings.items()
            if rank != self.rank and ending.num_completed < self.num_calls
        }
        for kind in kinds:
            for rank, ending in left.items():
                if ending.kind == kind:
                    return self._left_by(rank, ending)
        return None

    def _left_by(self, rank: int, ending: Ending) -> KadrilError:
        """Return the error that the note of a rank means to this one."""
        failed, world_rank = self._failed_call(), self.world_ranks[rank]
        culprit = ending.culprit
        if ending.kind == "revoked":
            is_known = culprit is not None and culprit < self.size
            return failed.revoked(
                self.world_ranks[culprit] if culprit is not None and is_known else world_rank,
                ending.reason,
            )
        if ending.kind == "closed":
            return failed.closed(world_rank)
        if culprit is None or culprit in (rank, self.rank) or culprit >= self.size:
            return failed.abandoned(world_rank, ending.reason)
        if ending.kind in ("lost", "failed"):
            lost = failed.lost([self.world_ranks[culprit]])
            lost.is_certain = ending.kind == "lost"
            return lost
        return failed.late([self.world_ranks[culprit]], self.config.patience)

    def _failed_call(self, words: str = "") -> FailedCall:
        """Return the call that failed, from which errors about peers are made."""
        elapsed = time.monotonic() - self._began
        return FailedCall(self._call, elapsed, words, self.hostnames, self.num_calls)

    # Agreement.

    def _agree(self, call: Call, payload: Memory | None = None) -> Memory:
        """Compare the calls of all ranks, and give every rank the payloads of all.

        A payload is flat bytes, as many on all ranks whose calls agree. Row r of the result is rank
        r's.

        Raises:
            MismatchError: on all ranks alike; nothing was moved.
        """
        if payload is None:
            payload = np.empty(0, dtype=np.uint8)
        if self.size == 1:
            return payload.reshape(1, -1)
        num_inline = payload.size if payload.size <= INLINE_BYTES else 0
        record = np.zeros(DIGEST_BYTES + INLINE_BYTES, dtype=np.uint8)
        record[:DIGEST_BYTES] = as_memory(call.digest())
        record[DIGEST_BYTES : DIGEST_BYTES + num_inline] = payload[:num_inline]
        records = self._meet(record)
        if not bool((records[:, :DIGEST_BYTES] == record[:DIGEST_BYTES]).all()):
            raise self._mismatch(call)
        if num_inline == payload.size:
            return records[:, DIGEST_BYTES : DIGEST_BYTES + num_inline]
        return self._gather(payload)

    def _agree_in_pairs(self, call: Call, sends: Sequence[int], recvs: Sequence[int]) -> None:
        """Compare the calls, then what each rank sends to each other with what that one expects.

        All ranks see the whole table, so all of them raise, also those whose own pairs agree.
        """
        row = np.array([sends, recvs], dtype=np.int64)
        rows = np.ascontiguousarray(self._agree(call, as_bytes(row)))
        tables = rows.view(np.int64).reshape(self.size, 2, self.size)
        differences = np.argwhere(tables[:, 0] != tables[:, 1].T).tolist()
        if differences:
            sender, receiver = (self.world_ranks[rank] for rank in differences[0])
            raise self._mismatch(
                call,
                f"what rank {sender} sends to rank {receiver} is not what rank {receiver} expects",
            )

    def _mismatch(self, call: Call, detail: str = "") -> MismatchError:
        """Ask every rank what it called; all ranks come here together."""
        # UTF-8 takes at most 4 bytes a character.
        text = np.zeros(MAX_SHOWN * 4, dtype=np.uint8)
        encoded = call.text.encode()
        text[: len(encoded)] = as_memory(encoded)
        texts = [as_data(row).rstrip(b"\0").decode(errors="replace") for row in self._meet(text)]
        return mismatch(texts, self.world_ranks, detail)

    def _gather(self, payload: Memory) -> Memory:
        """All-gather flat bytes, as many on every rank."""
        rows = np.empty((self.size, payload.size), dtype=np.uint8)
        rows[self.rank] = payload
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        self._exchange(
            [(rank, payload) for rank in others], [(rank, rows[rank]) for rank in others[::-1]]
        )
        return rows


def again(failure: KadrilError, call: Call) -> KadrilError:
    """The error of a call on a group that failed before: same type, same fields."""
    error = type(failure)(f"{call.text}: this group failed before: {failure}")
    error.__dict__.update(failure.__dict__)
    return error


def as_memory(data: bytes) -> Memory:
    """Return memory that holds some bytes."""
    return np.frombuffer(bytearray(data), dtype=np.uint8)


def as_data(memory: Memory) -> bytes:
    """Return a copy of memory as bytes."""
    return memory.tobytes()
