"""A group of ranks on several hosts: how they meet, and how one that fails does not leave the rest.

The lower half of the tiered transport. It stands on an inner group of the ranks of this host, and
on an outer one of all ranks. The first rank of a host is its leader:

    ranks of host A --+                                  +--> ranks of host A
                      +-- leader A --+-- leader A -------+
    ranks of host B --+              |  one packet each  +--> ranks of host B
                      +-- leader B --+-- leader B -------+

A record of a meeting takes one packet between hosts in any case, so it has room for a little data:
what the ranks of a host gave, or what their leader has made of it.

Who waits for whom, and for how long, so that the rank that is the cause is the one that is named:

    patience            ranks of a host for each other, when a call begins
    patience + MARGIN   a rank for a rank of another host, which may wait for one of its own
    patience + 2 MARGIN ranks of a host for each other later, when one may wait for another host

A rank that gives up says why in the memory of its host (`host_notes.py`) and to the outer group,
and then wakes the others of its host. A rank that waits for one of its own host asks the outer
group now and then whether somebody on another host has given up, and one that waits for another
host reads what those of its own have said.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from kadril.config import Config
from kadril.errors import KadrilError, PeerError, Revoked
from kadril.transport.base import Transport
from kadril.transport.buffer import DTYPES, Memory, address_of
from kadril.transport.call import DIGEST_BYTES, Call
from kadril.transport.network_group import Completion, Packet, as_data, as_memory
from kadril.transport.network_transport import Kernel, NetworkTransport, buffer_of
from kadril.transport.operands import OPS, CheckedReduction
from kadril.transport.shared_memory import SharedMemory
from kadril.transport.tiers.host_notes import HostNotes
from kadril.transport.tiers.tier_clock import TierClock
from kadril.transport.tiers.topology import Topology

__all__ = ["TierGroup", "inner_config", "outer_config"]

MARGIN = 1.0  # seconds
FIRST_LOOK = 0.1  # seconds of waiting inside a host before a look outside, and after each doubling

RECORD_BYTES = 1400  # of a host in a meeting: with its headers not more than one Ethernet frame
HEADER_BYTES = DIGEST_BYTES + 8
ROOM_BYTES = RECORD_BYTES - HEADER_BYTES

BYTE = DTYPES["uint8"]

Result = TypeVar("Result")


def inner_config(config: Config) -> Config:
    """The options of the group of the ranks of one host."""
    return dataclasses.replace(config, stall_warning=FIRST_LOOK)


def outer_config(config: Config) -> Config:
    """The options of the group of all ranks: it is a little more patient than a host."""
    return dataclasses.replace(
        config,
        patience=config.patience + MARGIN,
        stall_warning=config.stall_warning + MARGIN / 2,
    )


class TierGroup(NetworkTransport):
    """The ranks of several hosts, and how they meet.

    Attributes:
        topology: which ranks of the group share a host.
        host: the index of this rank's host there.
        local: the ranks of the group on this host.
        inner: the transport between them, for what follows a meeting.
        outer: the transport between all ranks.
    """

    def __init__(
        self, inner: Transport, outer: NetworkTransport, topology: Topology, config: Config
    ) -> None:
        """Join groups that exist; collective, and both are this one's from now on.

        Args:
            inner: the ranks of this host, in the order of the topology, with the options of
                `inner_config`.
            outer: all ranks, with the options of `outer_config`.
            topology: which ranks of `outer` share a host.
            config: options of the world.
        """
        super().__init__(outer.rank, outer.size, outer.world_ranks, config)
        self.topology = topology
        self.host = topology.host_of(self.rank)
        self.local = topology.hosts[self.host]
        self.memory_host = self.host
        self.takes_any_thread = outer.takes_any_thread
        self._clock = TierClock()
        self.outer = outer
        self._inner_meeting = inner  # where a call begins
        self.inner = inner.duplicate(
            patience=config.patience + 2 * MARGIN, stall_warning=FIRST_LOOK
        )
        self._host_notes = HostNotes(inner)
        # Not methods of this group: the groups below would keep it alive.
        reference = weakref.ref(self)
        self.outer.on_late = functools.partial(report_late, reference)
        self.outer.on_look = functools.partial(look_inside, reference)
        self._inner_meeting.on_late = functools.partial(look_outside, reference, True)
        if self.inner is not self._inner_meeting:
            # Whoever is waited for here waits for another host, and reports that itself.
            self.inner.on_late = functools.partial(look_outside, reference, False)

    @property
    def tier_times(self) -> Mapping[str, float]:
        """Seconds that the last call of this rank spent in each tier, by its name."""
        return self._clock.seconds

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return len(self.topology.hosts)

    @property
    def host_memory(self) -> SharedMemory | None:
        """Memory that the ranks of this host share."""
        return self.inner.shared_memory

    # Meetings.

    def _meet(self, record: Memory) -> Memory:
        length = record.size
        blocks = [np.empty((len(host), length), dtype=np.uint8) for host in self._hosts]
        gathered = self._inside(self._inner_meeting.allgather_bytes, as_data(record))
        if self._leads:
            blocks[self.host] = np.stack([as_memory(each) for each in gathered])
            self._swap_leaders(blocks)
        by_host = np.concatenate(blocks)
        self.broadcast_inside(by_host.reshape(-1), 0)
        rows = np.empty_like(by_host)
        rows[list(self.topology.ranks)] = by_host
        return rows

    def _gather(self, payload: Memory) -> Memory:
        return self._meet(payload)

    def _agree(self, call: Call, payload: Memory | None = None) -> Memory:
        length = 0 if payload is None else payload.size
        rides_along = length * max(map(len, self._hosts)) <= ROOM_BYTES
        given = as_data(payload) if payload is not None and rides_along else b""
        told = self._meet_hosts(call, given, b"".join)
        if payload is None:
            return np.empty((self.size, 0), dtype=np.uint8)
        if not rides_along:
            return self._gather(payload)
        rows = np.empty((self.size, length), dtype=np.uint8)
        for host, data in zip(self._hosts, told, strict=True):
            rows[list(host)] = data[: len(host) * length].reshape(len(host), length)
        return rows

    def _meet_hosts(
        self, call: Call, given: bytes, combine: Callable[[list[bytes]], bytes]
    ) -> Memory:
        """Compare the calls of all ranks, and give every rank a little data of each host.

        Args:
            call: of this rank.
            given: what it gives: as many bytes on all ranks whose calls agree, at most ROOM_BYTES.
            combine: what a leader makes of what the ranks of its host gave; at most ROOM_BYTES too.

        Returns:
            Data of each host, with undefined bytes after it.

        Raises:
            MismatchError: on all ranks alike; nothing was moved.
        """
        digest = call.digest()
        record = (digest + bytes(8) + given).ljust(RECORD_BYTES, b"\0")
        records = self._inside(self._inner_meeting.allgather_bytes, record)
        rows = np.zeros((self.num_hosts, RECORD_BYTES), dtype=np.uint8)
        if self._leads:
            if all(each[:DIGEST_BYTES] == digest for each in records):
                end = HEADER_BYTES + len(given)
                data = combine([each[HEADER_BYTES:end] for each in records])
                made = digest + b"\1" + bytes(7) + data
                rows[self.host, : len(made)] = as_memory(made)
            self._swap_leaders(list(rows))
        self.broadcast_inside(rows.reshape(-1), 0)
        # A host whose own ranks differ has left all of its record zero.
        expected = as_memory(digest + b"\1")
        if not bool((rows[:, : DIGEST_BYTES + 1] == expected).all()):
            raise self._mismatch(call)
        return rows[:, HEADER_BYTES:]

    def _swap_leaders(self, blocks: Sequence[Memory]) -> None:
        """Give the block of this host to the leaders of the others, and get theirs."""
        others = [
            (host[0], block)
            for index, (host, block) in enumerate(zip(self._hosts, blocks, strict=True))
            if index != self.host
        ]
        if others:
            mine = blocks[self.host]
            sends = [(leader, mine) for leader, _ in others]
            self._clock.across(self.outer._exchange, sends, others)

    @property
    def _hosts(self) -> tuple[tuple[int, ...], ...]:
        return self.topology.hosts

    @property
    def _leads(self) -> bool:
        return self.local[0] == self.rank

    # Inside a host.

    def broadcast_inside(self, memory: Memory, root: int) -> None:
        """Copy bytes of a local rank to all of its host."""
        if len(self.local) > 1 and memory.size:
            self._inside(self.inner._run_broadcast, buffer_of(memory, BYTE), root, "")

    def gather_inside(self, source: Memory, target: Memory, counts: Sequence[int]) -> None:
        """Concatenate bytes of the ranks of this host; the source may be its part of the target."""
        if len(self.local) > 1:
            given, result = buffer_of(source, BYTE), buffer_of(target, BYTE)
            self._inside(self.inner._run_allgatherv, given, result, tuple(counts), "")
        elif address_of(source) != address_of(target):
            target[...] = source

    def reduce_inside(
        self, kernel: Kernel, source: Memory, target: Memory, counts: Sequence[int]
    ) -> None:
        """Reduce over the ranks of this host, each its part; the target may be part of the source.

        `counts` are elements; memory is bytes.
        """
        if len(self.local) == 1:
            kernel.reduce(target, [source])
            return
        reduction = CheckedReduction(
            buffer_of(source, kernel.dtype),
            buffer_of(target, kernel.dtype),
            OPS[kernel.op_code],  # type: ignore[arg-type]
            kernel.op_code,
            kernel.prescale,
            kernel.postscale,
            "",
        )
        self._inside(self.inner._run_reduce_scatterv, reduction, tuple(counts))

    def _inside(self, run: Callable[..., Result], *arguments: object) -> Result:
        """Call the inner group; what it raises about peers is told of the call of this group."""
        try:
            return self._clock.inside(run, *arguments)
        except PeerError as error:
            raise self._explained(error) from error

    def _explained(self, error: PeerError) -> KadrilError:
        """The error of this call: by what a rank of this host has said, or by the inner group."""
        if self._failure is not None:
            return self._failure  # found by looking outside
        obstacle = self._obstacle_inside()
        if obstacle is not None:
            return obstacle
        told = copy.copy(error)
        told.args = (f"{self._call.text}: {error.event or error}",)
        told.operation, told.name = self._call.operation, self._call.name
        return told

    def _obstacle_inside(self) -> KadrilError | None:
        """The error for this call, if a rank of this host has said that it gave up."""
        endings = {self.local[place]: each for place, each in self._host_notes.endings().items()}
        return self._obstacle(endings)

    # Between hosts.

    def _start_exchange(self, sends: Sequence[Packet], recvs: Sequence[Packet]) -> Completion:
        if not (sends or recvs):
            return nothing
        complete = self._clock.across(self.outer._start_exchange, sends, recvs)
        return functools.partial(self._clock.across, complete)

    def _note_waiting(self) -> None:
        self.outer._note_waiting()

    # The life of a group.

    @contextmanager
    def _calling(self, call: Call) -> Iterator[None]:
        # The outer group counts the same calls, so its notes speak of the call of all.
        with super()._calling(call), self.outer._calling(call):
            self._clock.restart()
            yield

    def _leave(self, failure: KadrilError | None) -> None:
        self._host_notes.leave(self._ending_of(failure))
        if failure is None:
            self.outer.close()
            self._close_inner()
            return
        if isinstance(failure, Revoked) and failure.rank == self.world_ranks[self.rank]:
            self.outer.revoke(self._reason)
        else:
            self.outer._fail(failure)
        # Last, since it wakes ranks that then look for what was said.
        for group in (self._inner_meeting, self.inner):
            if group.shared_memory is not None:
                group.shared_memory.channel.revoke()  # without a word in the log: an error is told

    def close(self) -> None:
        """Leave the group; local, and may be called again. Ranks still waiting raise `PeerLost`."""
        super().close()
        if self._closed:
            self.outer.close()
            self._close_inner()

    def _close_inner(self) -> None:
        self._inner_meeting.close()
        self.inner.close()


def report_late(reference: weakref.ref[TierGroup], late: Sequence[int], waited: float) -> None:
    """Report ranks that a group below waits for as those that its tiers wait for."""
    group = reference()
    if group is not None:
        group._report_late(late, waited)


def look_outside(
    reference: weakref.ref[TierGroup], is_meeting: bool, late: Sequence[int], waited: float
) -> None:
    """Give up if somebody on another host has; called by a rank that waits inside its host."""
    group = reference()
    if group is None:
        return
    try:
        group.outer._raise_obstacle()
    except KadrilError as error:
        group._fail(error)  # which ends the wait
        return
    # Also of one that waits for its leader: it must not be taken for the one that is late.
    group.outer._note_waiting()
    if is_meeting and waited >= group.config.stall_warning:
        group._report_late(late, waited)


def look_inside(reference: weakref.ref[TierGroup]) -> None:
    """Give up if a rank of this host has; called by a rank that waits for another host.

    It may wait for a rank that has left for the same reason, and could tell nobody of it.
    """
    group = reference()
    obstacle = None if group is None else group._obstacle_inside()
    if obstacle is not None:
        raise obstacle


def nothing() -> None:
    """Wait for nothing."""
