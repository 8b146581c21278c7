"""Connections of our own as a transport: one between each two ranks of a group.

What this has over gloo (`c10d.py`): each connection is proved from both sides (`dialer.py`); a rank
that leaves says why on the connections themselves, so nobody asks a store while waiting; a host or
a link that is dead is noticed by both sides within `link_timeout`, and one that is slow is not
taken for it (`tcp_link.py`). There is no thread: bytes move while a rank is inside a call, and in
the buffers of the kernel meanwhile.

    caller:  start exchange --> links: frames queued --> kernel
             complete: poll all links until all its messages are through --+
                ^                                                          |
                +---- a note, an end, no progress: the error of this call <+

What is carried is neither encrypted nor checked for changes on the way.
"""

from __future__ import annotations

import functools
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from kadril.config import Config
from kadril.errors import KadrilError
from kadril.transport.buffer import Memory
from kadril.transport.dialer import Dialer, nothing_to_check
from kadril.transport.ending import Ending
from kadril.transport.network_group import Completion, Packet
from kadril.transport.network_transport import NetworkTransport
from kadril.transport.peer_errors import name_peers
from kadril.transport.tcp_link import FrameError, FrameKind, TcpLink, Transfer

__all__ = ["TcpTransport"]

SLICE = 0.25  # seconds of a wait between two looks around
ANSWER_TIME = 0.5  # seconds that the rank which others hold to be the cause has to say so itself
DOUBT_TIME = 5.0  # seconds at most that others have to say which of several ranks is late
FAREWELL_TIME = 5.0  # seconds to get a last word through to a rank that does not read

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
ENDED = -1  # no longer watched

logger = logging.getLogger("kadril")


class TcpTransport(NetworkTransport):
    """A group of ranks with a TCP connection between each two."""

    kind = "tcp"

    @classmethod
    def open(cls, dialer: Dialer, *, world_ranks: Sequence[int], config: Config) -> TcpTransport:
        """Connect the ranks of a world; all of them call it.

        Args:
            dialer: makes the connections.
            world_ranks: of the group's ranks, in their order.
            config: `patience`, `stall_warning` and `link_timeout` are used.

        Raises:
            RendezvousError: not all ranks came, or could not connect.
        """
        return cls(dialer, world_ranks, config, "world")

    def __init__(
        self,
        dialer: Dialer,
        world_ranks: Sequence[int],
        config: Config,
        label: str,
        check: Callable[[], None] = nothing_to_check,
    ) -> None:
        rank = list(world_ranks).index(dialer.rank)
        super().__init__(rank, len(world_ranks), world_ranks, config)
        self._dialer = dialer
        self._label = label
        self._wire = threading.Lock()  # held to touch links, not to wait for them
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Once: its number may be another file's after that.
        self._close_alarm = weakref.finalize(self, os.close, self._alarm)
        self._poll = select.epoll()
        self._poll.register(self._alarm, READ)
        self._masks: dict[int, int] = {}
        self._links: dict[int, TcpLink] = {}
        self._by_descriptor: dict[int, TcpLink] = {}
        self._last_progress = 0.0
        try:
            sockets = dialer.dial(world_ranks, label, check) if self.size > 1 else {}
        except BaseException:
            self._close_links()
            raise
        for world_rank, sock in sockets.items():
            link = TcpLink(sock, self.world_ranks.index(world_rank))
            self._links[link.peer] = self._by_descriptor[link.fileno()] = link
            self._watch(link)
        # Ranks of this host, which share its uplink.
        self._num_local = 1 + sum(map(is_local, sockets.values()))

    def _subgroup(self, members: Sequence[int], label: str, number: int) -> TcpTransport:
        world_ranks = [self.world_ranks[rank] for rank in members]
        # Ranks that give this group up meanwhile do not come to the new one either.
        return TcpTransport(
            self._dialer,
            world_ranks,
            self.config,
            f"{self._label}/{label}",
            self._raise_obstacle,
        )

    # Movers.

    def _meet(self, record: Memory) -> Memory:
        rows = np.empty((self.size, record.size), dtype=np.uint8)
        rows[self.rank] = record
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        meeting = self._start(
            [(rank, record) for rank in others],
            [(rank, rows[rank]) for rank in reversed(others)],
            FrameKind.MEETING,
        )
        self._finish(meeting)
        return rows

    def _start_exchange(self, sends: Sequence[Packet], recvs: Sequence[Packet]) -> Completion:
        return functools.partial(self._finish, self._start(sends, recvs, FrameKind.PACKET))

    def _start(self, sends: Sequence[Packet], recvs: Sequence[Packet], kind: FrameKind) -> Transfer:
        """Queue messages, and send what the kernel takes at once."""
        transfer = Transfer()
        transfer.targets = tuple(dict.fromkeys(peer for peer, _ in sends))
        with self._wire:
            self._check_usable(self._call)
            for peer, memory in recvs:
                self._links[peer].expect(kind, view(memory), transfer)
            for peer, memory in sends:
                self._links[peer].send(kind, view(memory), transfer)
            for peer in transfer.targets:
                self._links[peer].adapt_window(self._num_local * len(transfer.targets))
                self._links[peer].push()
            for peer in dict.fromkeys(peer for peer, _ in [*recvs, *sends]):
                self._pull(self._links[peer])
        return transfer

    def _finish(self, transfer: Transfer) -> None:
        """Wait until all messages are through."""
        self._begin_wait()
        self._last_progress = now = time.monotonic()
        next_look, moved, is_warned = now + SLICE, transfer.moved, False
        while transfer.num_left:
            self._raise_if_left()
            self._move(next_look - now)
            now = time.monotonic()
            if transfer.moved != moved:
                moved, self._last_progress = transfer.moved, now
            if now >= next_look:
                next_look = now + SLICE
                is_warned = self._look_around(transfer, is_warned)

    def _move(self, timeout: float) -> None:
        """Wait for links that can be read or written, and do it."""
        try:
            ready = self._poll.poll(max(timeout, 0.0))
        except ValueError:  # another thread has just closed it
            ready = []
        with self._wire:
            self._check_usable(self._call)
            for descriptor, events in ready:
                link = self._by_descriptor.get(descriptor)
                if link is None:
                    continue  # the alarm, by which another thread wakes this one
                if events & WRITE:
                    link.push()
                if events & ~WRITE:
                    self._pull(link)
                self._watch(link)

    def _pull(self, link: TcpLink) -> None:
        """Take what a link has; watch it as it needs to be from now on."""
        try:
            link.pull()
        except FrameError as error:
            raise self._failed_call(f"rank {self.world_ranks[link.peer]} sent {error}").unknown(
                "the connection"
            ) from error
        self._watch(link)

    def _watch(self, link: TcpLink) -> None:
        """Have the kernel tell what a link waits for, and nothing else."""
        mask = (READ if link.wants_to_read else 0) | (WRITE if link.wants_to_send else 0)
        if link.is_ended:
            mask = ENDED
        known = self._masks.get(link.peer)
        if mask == known:
            return
        self._masks[link.peer] = mask
        if known is None:
            self._poll.register(link, mask)
        elif mask == ENDED:
            self._poll.unregister(link)  # the kernel would tell of the end for ever
        else:
            self._poll.modify(link, mask)

    # Failures.

    def _look_around(self, transfer: Transfer, is_warned: bool) -> bool:
        """Check whether the call can still complete; return whether a warning was logged."""
        self._check_wait()
        self._check_links()
        self._raise_if_left()
        now = time.monotonic()
        late = [self.world_ranks[peer] for peer in sorted(transfer.peers) if transfer.peers[peer]]
        # Patience is for ranks that do not come: as long as bytes move, somebody is there.
        # Of several some may only wait as this rank does: they lose patience too, and name the one.
        patience = self.config.patience
        doubt = min(patience / 4, DOUBT_TIME) if len(late) > 1 else 0.0
        if now - self._last_progress > patience + doubt:
            raise self._failed_call().late(late, patience)
        if self._waited() > self.config.stall_warning and not is_warned:
            if transfer.moved and now - self._last_progress < self.config.stall_warning / 2:
                self._report_slow(transfer, late)
            else:
                self._report_late(late, self._waited())
            return True
        return is_warned

    def _report_slow(self, transfer: Transfer, ranks: Sequence[int]) -> None:
        """Tell of a link that carries bytes, but few."""
        megabytes, waited = transfer.moved / 1e6, self._waited()
        logger.warning(
            "%s is slow: %.1f of %.1f MB to and from %s have gone through in %.0f s, %.2f MB/s;"
            " the link works",
            self._call.text,
            megabytes,
            transfer.total / 1e6,
            name_peers(ranks, self.hostnames),
            waited,
            megabytes / waited,
        )

    def _check_links(self) -> None:
        """Notice connections whose other host answers nothing."""
        with self._wire:
            self._check_usable(self._call)
            for link in self._links.values():
                link.check_alive(self.config.link_timeout)
                self._watch(link)

    def _raise_obstacle(self) -> None:
        """Raise if some rank has left; for a group above that waits elsewhere meanwhile."""
        self._move(0.0)
        self._check_links()
        self._raise_if_left()

    def _raise_if_left(self) -> None:
        """Raise if a rank is gone, or has said that it left before it completed this call."""
        if not any(link.is_ended for link in self._links.values()):
            return
        obstacle = self._verdict()
        if obstacle is None:
            return
        # Who lost a rank says so at once, and may be heard before that rank's own last word, which
        # tells more: that it closed, or gave up on purpose.
        deadline = time.monotonic() + ANSWER_TIME
        while not self._is_clear() and time.monotonic() < deadline:
            self._move(0.01)
        raise self._verdict() or obstacle

    def _is_clear(self) -> bool:
        """Whether each rank that another holds to be the cause has been heard, or is known dead."""
        culprits = {each.culprit for each in self._notes().values() if each.kind == "failed"}
        return all(self._links[each].is_ended for each in culprits if each in self._links)

    def _verdict(self) -> KadrilError | None:
        """The error of this call by what is known of ranks that have left, if there is one."""
        notes = self._notes()
        obstacle = self._obstacle(notes, ("revoked", "closed", "stalled"))
        if obstacle is not None:
            return obstacle
        for peer, link in self._links.items():
            if link.loss and peer not in notes:
                return self._failed_call(link.loss).lost([self.world_ranks[peer]])
        return self._obstacle(notes, ("failed",))

    def _notes(self) -> dict[int, Ending]:
        """Return why ranks have left, by their own word."""
        links = self._links.items()
        return {peer: link.ending for peer, link in links if link.ending is not None}

    # The end.

    def _leave(self, failure: KadrilError | None) -> None:
        ending = self._ending_of(failure)
        with self._wire:
            for link in self._links.values():
                link.say_last(ending)
            os.eventfd_write(self._alarm, 1)
        unsaid = [link for link in self._links.values() if link.wants_to_send]
        if unsaid:
            say_in_background(unsaid)
        if failure is None:
            self._close_links(spare=unsaid)

    def close(self) -> None:
        """Leave the group; local, and may be called again. Ranks still waiting raise `PeerLost`."""
        super().close()
        if self._pid == os.getpid():
            self._close_links(spare=[each for each in self._links.values() if each.wants_to_send])

    def _close_links(self, spare: Sequence[TcpLink] = ()) -> None:
        """Let go of the connections, but of those that still have something to say."""
        with self._wire:
            for link in self._links.values():
                if link not in spare:
                    link.close()
            self._poll.close()
            self._close_alarm()


def is_local(sock: socket.socket) -> bool:
    """Whether a connection stays within this host."""
    try:
        ends = sock.getsockname(), sock.getpeername()
    except OSError:
        return False  # it is gone already
    return bool(ends[0][0] == ends[1][0])


def view(memory: Memory) -> memoryview:
    """Return the bytes of memory, without a copy."""
    return memory.data


def say_in_background(links: Sequence[TcpLink]) -> None:
    """Get last words through to ranks that do not read at the moment; then close."""

    def say() -> None:
        deadline = time.monotonic() + FAREWELL_TIME
        while time.monotonic() < deadline:
            waiting = [link for link in links if link.wants_to_send]
            if not waiting:
                break
            for link in select.select([], waiting, [], 0.1)[1]:
                link.push()
                link.end_sending()
        for link in links:
            link.close()

    threading.Thread(target=say, name="kadril-tcp-farewell", daemon=True).start()
