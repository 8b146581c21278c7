"""torch.distributed as a transport: gloo between hosts, and device backends by name.

The process groups are our own, made on the store that was given: torch's default group, made by the
user before or after, is neither used nor touched. (`dist.new_group` would not do: it needs the
default group, and names subgroups by how many groups a process has, which differs between ranks
after a split.)

What gloo lacks and this adds:

- waits are cut into slices, so that an interrupt, a peer that gave up and a stall are seen while
  waiting;
- a late or lost rank is named, by the notes that ranks leave in the store (`store_notes.py`);
- element types and ops that gloo cannot reduce, and an error where it would abort
  (`network_transport.py`).

What gloo carries is not encrypted.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kadril.config import Config
from kadril.errors import KadrilError, RendezvousError, name_ranks
from kadril.transport.buffer import Memory
from kadril.transport.ending import SURE, Ending
from kadril.transport.kept_groups import Group, keep_in_children, keep_until_done, release_finished
from kadril.transport.network_group import Completion, Packet
from kadril.transport.network_transport import NetworkTransport
from kadril.transport.store_notes import ANSWER_TIME, StoreNotes
from kadril.transport.waiter import Waiter

__all__ = ["C10dTransport"]

SLICE = timedelta(seconds=0.2)
MARGIN = 2.0  # seconds by which our patience runs out before gloo's, since we can say on whom
NEWS_AGE = 0.1  # seconds after which a rank asks whether others have left before it waits for them
PROBE_INTERVAL = 0.5  # seconds between two looks at a connection whose packets do not come
PACKET_TAG, PROBE_TAG = 1, 2
SIGNS_OF_LOSS = ("closed by peer", "reset by peer", "Broken pipe")

logger = logging.getLogger("kadril")


class PacketWait:
    """A wait for packets, one after the other.

    Attributes:
        peer: whose packet is waited for, or failed.
        error: gloo's words, if one failed.
    """

    def __init__(self, works: Sequence[tuple[int, dist.Work]], timeout: float) -> None:
        self.works = works
        self.timeout = timeout
        self.peer = works[0][0]
        self.error = ""

    def run(self) -> None:
        """Wait for all, or until one fails."""
        deadline = time.monotonic() + self.timeout
        for peer, work in self.works:
            self.peer = peer
            try:
                work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
            except RuntimeError as error:
                self.error = str(error) or type(error).__name__
                return


class C10dTransport(NetworkTransport):
    """A group of ranks connected by gloo."""

    kind = "c10d"
    reaches_devices = True

    @classmethod
    def open(
        cls,
        store: dist.Store,
        rank: int,
        size: int,
        *,
        world_ranks: Sequence[int],
        config: Config,
        hostname: str = "",
    ) -> C10dTransport:
        """Connect the ranks of a group; all of them call it.

        Args:
            store: where they meet; with keys that nobody has used, i.e. a `PrefixStore` of its own.
            rank: of this process, within the group.
            size: number of ranks.
            world_ranks: world rank of each.
            config: `patience`, `stall_warning` and `connect_timeout` are used.
            hostname: address that gloo listens on, e.g. "127.0.0.1" where all ranks are on one
                host; otherwise that of GLOO_SOCKET_IFNAME, or of the host's name.

        Raises:
            RendezvousError: not all ranks came within `config.connect_timeout`, or could not
                connect.
        """
        return cls(store, rank, size, world_ranks, config, hostname)

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        world_ranks: Sequence[int],
        config: Config,
        hostname: str = "",
    ) -> None:
        super().__init__(rank, size, world_ranks, config)
        release_finished()
        self.hostname = hostname
        self._store = store
        self._notes = StoreNotes(dist.PrefixStore("notes", store), rank, size)
        self._last_news = self._last_probe = time.monotonic()
        self._waiter = Waiter(f"kadril-c10d-{rank}")
        self._group: Group = None
        self._last_met: object = None
        if size > 1:
            self._check_in()
            self._group = keep_in_children(self._connect(self._make_gloo))

    # Set-up.

    def _check_in(self) -> None:
        """Wait until every rank has come, so that those who did not can be named."""
        keys = [f"here/{rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], "1")
        try:
            self._store.wait(keys, timedelta(seconds=self.config.connect_timeout))
        except RuntimeError as error:
            raise RendezvousError(
                f"{self._absent(keys)} of {self.size} did not come within"
                f" {self.config.connect_timeout:g} s. See what they print; raise"
                " KADRIL_CONNECT_TIMEOUT if they need longer to start."
            ) from error

    def _absent(self, keys: Sequence[str]) -> str:
        try:
            present = [self._store.check([key]) for key in keys]
        except RuntimeError:
            return "the store is gone, so some rank"
        return name_ranks(
            [rank for rank, here in zip(self.world_ranks, present, strict=True) if not here]
        )

    def _connect(self, make: Callable[[timedelta], Group]) -> Group:
        """Make a process group."""
        try:
            return make(timedelta(seconds=self.config.connect_timeout))
        except RuntimeError as error:
            raise RendezvousError(
                f"ranks found each other, but could not connect: {error}. If hosts have several"
                " networks, set GLOO_SOCKET_IFNAME to the interface that joins them; look for a"
                " firewall."
            ) from error

    def _make_gloo(self, timeout: timedelta) -> Group:
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # absent from the stubs
        options._timeout = timeout
        options._devices = [self._make_device()]
        return dist.ProcessGroupGloo(
            dist.PrefixStore("gloo", self._store), self.rank, self.size, options
        )

    def _make_device(self) -> object:
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
        if self.hostname:
            return dist.ProcessGroupGloo.create_device(hostname=self.hostname)
        if interface:
            return dist.ProcessGroupGloo.create_device(interface=interface)
        return dist.ProcessGroupGloo.create_default_device()

    def _subgroup(self, members: Sequence[int], label: str, number: int) -> C10dTransport:
        return C10dTransport(*self._subgroup_arguments(members, label))

    def _subgroup_arguments(
        self, members: Sequence[int], label: str
    ) -> tuple[dist.Store, int, int, list[int], Config, str]:
        store = dist.PrefixStore(f"split/{label}", self._store)
        world_ranks = [self.world_ranks[rank] for rank in members]
        return (
            store,
            members.index(self.rank),
            len(members),
            world_ranks,
            self.config,
            self.hostname,
        )

    # Movers.

    def _meet(self, record: Memory) -> Memory:
        # As an all-to-all: gloo does that in one step, and a gather in p - 1.
        given = torch.from_numpy(record).repeat(self.size)
        rows = torch.empty_like(given)
        lengths = [record.size] * self.size
        options = dist.AllToAllOptions()
        options.timeout = timedelta(seconds=self.config.patience + MARGIN)
        group = self._engine()
        self._begin_wait()
        self._ask_for_news()
        work = group.alltoall_base(rows, given, lengths, lengths, options)
        try:
            self._wait(work)
        except BaseException:
            if not work.is_completed():
                keep_until_done(group, work)
            raise
        # A thread of gloo's lets go of them a moment later. Were it the last one it would need the
        # GIL for that, and a thread state, which must not be made beside a fork (python_lane.h).
        self._last_met = (work, given, rows)
        return rows.view(self.size, -1).numpy()

    def _wait(self, work: dist.Work) -> None:
        """Wait for a work that runs in a thread of gloo's; the end of a slice leaves it running."""
        is_warned = False
        while True:
            try:
                work.wait(SLICE)
            except RuntimeError:
                if work.is_completed():
                    break
            else:
                return
            is_warned = self._look_around(is_warned)
        try:
            work.wait()
        except RuntimeError as error:
            raise self._verdict(str(error)) from error

    def _start_exchange(self, sends: Sequence[Packet], recvs: Sequence[Packet]) -> Completion:
        group = self._engine()
        works: list[tuple[int, dist.Work]] = []
        peer = self.rank
        try:
            for peer, memory in recvs:
                works.append((peer, group.recv([torch.from_numpy(memory)], peer, PACKET_TAG)))
            for peer, memory in sends:
                works.append((peer, group.send([torch.from_numpy(memory)], peer, PACKET_TAG)))
        except RuntimeError as error:
            raise self._verdict(str(error), peer) from error
        return functools.partial(self._wait_for_packets, group, works)

    def _wait_for_packets(self, group: Group, works: Sequence[tuple[int, dist.Work]]) -> None:
        self._begin_wait()
        # A wait for a packet cannot be cut into slices: at its end gloo closes all connections.
        waiting = PacketWait(works, self.config.patience + MARGIN)
        pending = self._waiter.ask(waiting.run)
        is_warned = False
        while not pending.done.wait(SLICE.total_seconds()):
            is_warned = self._look_around(is_warned)
            self._probe(group, waiting.peer)
        if waiting.error:
            raise self._verdict(waiting.error, waiting.peer)

    def _probe(self, group: Group, peer: int) -> None:
        """Raise if the connection to a peer is down.

        gloo does not wake a wait for a packet of which a part has come when its sender dies; but it
        refuses to begin another.
        """
        if time.monotonic() - self._last_probe > PROBE_INTERVAL:
            self._last_probe = time.monotonic()
            words = self._is_broken(group, peer)
            if words:
                raise self._verdict(words, peer)

    def _engine(self) -> Group:
        """The process group, which another thread may just have given up."""
        group = self._group
        if group is None:
            self._check_usable(self._call)
        return group

    def _leave(self, failure: KadrilError | None) -> None:
        self._notes.note_ending(self._ending_of(failure))
        self._waiter.dismiss()
        self._last_met = None  # it holds the connections too
        self._group = None  # closes its connections, unless another thread is in a call

    # Failures.

    def _ask_for_news(self) -> None:
        """Raise if the group was given up while this rank was busy elsewhere.

        A rank that gave up in the middle of a meeting may still be represented there by gloo's
        threads.
        """
        if time.monotonic() - self._last_news > NEWS_AGE:
            self._raise_obstacle()

    def _raise_obstacle(self) -> None:
        """Raise if some rank has left before it completed this call."""
        self._last_news = time.monotonic()
        endings = self._notes.endings().values()
        if any(ending.num_completed < self.num_calls for ending in endings):
            raise self._verdict()

    def _look_around(self, is_warned: bool) -> bool:
        """Check whether the call can still complete; return whether a warning was logged."""
        self._check_wait()
        self._raise_obstacle()
        self._note_waiting()
        waited = self._waited()
        if waited > self.config.patience:
            raise self._failed_call().late(self._late(), self.config.patience)
        if waited > self.config.stall_warning and not is_warned:
            late = self._late()
            if late:  # none where all wait for packets that take long
                self._report_late(late, waited)
            return True
        return is_warned

    def _note_waiting(self) -> None:
        self._notes.note_waiting(self.num_calls)

    def _late(self) -> list[int]:
        """World ranks that do not wait in this call, as far as is known."""
        return [self.world_ranks[rank] for rank in self._notes.late(self.num_calls)]

    def _verdict(self, words: str = "", suspect: int | None = None) -> KadrilError:
        """Return the error: by gloo's words, the peer they are about, and the notes of others."""
        words = plain_words(words)
        broken = self._broken_peers() if words else []
        reason = words or "others have left"
        self._notes.note_ending(Ending("failed", self.num_completed, suspect, reason))
        silent = self._notes.silent()
        # Who failed lost the same rank as this one, and knows no more about it.
        obstacle = self._obstacle(self._notes.endings(), SURE)
        if obstacle is not None:
            return obstacle
        candidates = self._without_store(broken) if silent is None else silent
        failed = self._failed_call(f"gloo says: {words}" if words else "")
        if "timed out" in words.lower():
            late = candidates if suspect is None else [suspect]
            return failed.late([self.world_ranks[rank] for rank in late], self.config.patience)
        if words and not any(sign in words for sign in SIGNS_OF_LOSS):
            return failed.unknown("gloo")
        return failed.lost([self.world_ranks[rank] for rank in candidates or self._notes.others])

    def _without_store(self, broken: list[int]) -> list[int]:
        """Return who is lost where the store is gone too, of ranks whose connection is down.

        It goes with the rank that serves it, the first of the world. The others have left since.
        """
        if 0 not in self.world_ranks:
            return broken
        server = self.world_ranks.index(0)
        deadline = time.monotonic() + ANSWER_TIME
        # Connections end in the order in which gloo's thread gets to them.
        while not (is_gone := server in broken or bool(self._is_broken(self._group, server))):
            if server == self.rank or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return [server] if is_gone else broken

    def _broken_peers(self) -> list[int]:
        """Ranks to which the connection is down."""
        return [peer for peer in self._notes.others if self._is_broken(self._group, peer)]

    def _is_broken(self, group: Group, peer: int) -> str:
        """Return what gloo says about a connection that is down; nothing about one that is not."""
        try:
            group.recv([torch.empty(1, dtype=torch.uint8)], peer, PROBE_TAG)
        except (RuntimeError, AttributeError) as error:  # the latter: another thread has let go
            return str(error)
        return ""


def plain_words(words: str) -> str:
    """Shorten a message of gloo: without the place in its source and the advice."""
    return re.sub(r"^\[\S+:\d+\] ", "", words).partition(". This is typically")[0]
