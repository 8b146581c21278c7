"""Connections between any two ranks of a world, each proved from both sides.

To reach a rank, connect to the port of its host (acceptor.py) and make the handshake; the
connection is then handed to that rank, which says START when it has come to the same call:

    rank 5                       port of rank 2's host             rank 2
      |--- claim: 5 to 2, group -------->|                            |
      |<-- welcome, with a proof --------|--- descriptor, 5, group -->|
      |------------------------------- READY ------------------------>|
      |<------------------------------ START -------------------------|

Of two ranks the higher one connects. The first rank of each host listens: one port per host, on the
interface that `Config.interface` names.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from kadril.config import Config
from kadril.errors import ConfigError, RendezvousError
from kadril.transport.dialer import nothing_to_check
from kadril.transport.forked_sockets import close_in_children
from kadril.transport.keepalive import set_liveness
from kadril.world import inet
from kadril.world.acceptor import ARRIVAL, Acceptor
from kadril.world.bootstrap import Bootstrap, agree
from kadril.world.deadline import Backoff, Deadline
from kadril.world.fields import pack, unpack
from kadril.world.handshake import LinkClaim, digest
from kadril.world.hub import Hub
from kadril.world.joining import find, introduce
from kadril.world.layout import Layout
from kadril.world.place import TcpPlace
from kadril.world.wire import Connection, Kind, PeerClosedError, WireError, encode

__all__ = ["Connector", "open_connector"]

MAX_SILENT_REFUSALS = 3
SLICE = 0.05  # seconds after which a thread that waits for a connection lets another one look
CHECK_SECONDS = 0.25  # between two looks at whether the others can still come
READY, START = encode(Kind.READY), encode(Kind.START)


class Connector:
    """Connects this rank to others; see `kadril.transport.dialer.Dialer`."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        secret: bytes,
        places: Sequence[TcpPlace],
        mailbox: Connection,
        acceptor: Acceptor | None,
        config: Config,
    ) -> None:
        self.rank = bootstrap.rank
        self._job = bootstrap.job
        self._generation = bootstrap.generation
        self._secret = secret
        self._places = places  # of each world rank
        self._mailbox = mailbox
        self._acceptor = acceptor
        self._config = config
        self._arrived: dict[tuple[int, bytes], socket.socket] = {}
        self._lock = threading.Lock()

    def dial(
        self,
        world_ranks: Sequence[int],
        label: str,
        check: Callable[[], None] = nothing_to_check,
    ) -> dict[int, socket.socket]:
        """Connect the ranks of a group with each other; all of them call it.

        Raises:
            RendezvousError: a rank did not come in time, or left.
        """
        deadline = Deadline(self._config.connect_timeout)
        group = digest(label)
        made: dict[int, socket.socket] = {}
        try:
            for target in (rank for rank in world_ranks if rank < self.rank):
                made[target] = self._reach(target, group, deadline)
            for source in (rank for rank in world_ranks if rank > self.rank):
                made[source] = self._await_arrival(source, group, deadline, check)
                self._await_word(READY, source, made[source], deadline, check)
                made[source].sendall(START)
            for target in (rank for rank in world_ranks if rank < self.rank):
                self._await_word(START, target, made[target], deadline, check)
        except BaseException as error:
            for sock in made.values():
                sock.close()
            if isinstance(error, OSError):
                raise RendezvousError(f"rank {self.rank}: cannot connect: {error}") from error
            raise
        for sock in made.values():
            set_liveness(sock, self._config.link_timeout)
            close_in_children(sock)
        return made

    def _reach(self, target: int, group: bytes, deadline: Deadline) -> socket.socket:
        """Connect to the host of a rank, and prove to be of the job."""
        place, timeout = self._places[target], self._config.connect_timeout
        claim = LinkClaim(self.rank, target, self._job, self._generation, group)
        backoff = Backoff()
        for _ in range(MAX_SILENT_REFUSALS):
            connection, challenge = find(
                place, self.rank, deadline, timeout, f"the host of rank {target}"
            )
            try:
                verdict = introduce(connection, self._secret, claim, challenge, deadline)
                if verdict is not None and verdict.kind is Kind.WELCOME:
                    connection.send(Kind.READY, deadline=deadline)
                    return connection.socket
            except (WireError, TimeoutError, PeerClosedError) as error:
                connection.close()
                raise RendezvousError(
                    f"rank {self.rank}: what listens at {place} does not prove to be the host of"
                    f" rank {target} in this job: {error}"
                ) from error
            except BaseException:
                connection.close()
                raise
            connection.close()
            if verdict is not None:
                reason = verdict.payload.decode(errors="replace")
                raise RendezvousError(
                    f"rank {self.rank}: the host of rank {target} refused: {reason}"
                )
            backoff.sleep(deadline)
        raise RendezvousError(
            f"rank {self.rank}: the host of rank {target} at {place} did not accept the proof of"
            " this process: do all ranks have the same KADRIL_SECRET_FILE?"
        )

    def _await_arrival(
        self, source: int, group: bytes, deadline: Deadline, check: Callable[[], None]
    ) -> socket.socket:
        """Wait for the connection of a rank; several threads may wait for several of them."""
        next_check = time.monotonic() + CHECK_SECONDS
        while True:
            with self._lock:
                if (source, group) not in self._arrived:
                    self._read_mailbox(min(SLICE, deadline.remaining))
                sock = self._arrived.pop((source, group), None)
            if sock is not None:
                return sock
            if deadline.expired:
                raise RendezvousError(
                    f"rank {self.rank}: rank {source} did not connect within"
                    f" {self._config.connect_timeout:g} s. See what it does instead, or raise"
                    " KADRIL_CONNECT_TIMEOUT"
                )
            if time.monotonic() >= next_check:
                check()
                next_check = time.monotonic() + CHECK_SECONDS
            time.sleep(0)  # another thread may have what it waits for

    def _read_mailbox(self, timeout: float) -> None:
        """Take one connection, if one comes."""
        if not self._mailbox.has_frame and not select.select([self._mailbox], [], [], timeout)[0]:
            return
        try:
            frame = self._mailbox.poll()
        except PeerClosedError:
            raise RendezvousError(
                f"rank {self.rank}: the rank that listens for this host has left"
            ) from None
        if frame is not None and frame.descriptor is not None:
            source, group = ARRIVAL.unpack(frame.payload)
            old = self._arrived.pop((source, group), None)
            if old is not None:
                old.close()  # of an attempt that was given up
            self._arrived[source, group] = socket.socket(fileno=frame.descriptor)

    def _await_word(
        self,
        word: bytes,
        rank: int,
        sock: socket.socket,
        deadline: Deadline,
        check: Callable[[], None],
    ) -> None:
        """Wait until the other rank has come too. Not a byte more is read: data may follow."""
        heard = b""
        while len(heard) < len(word):
            sock.settimeout(max(min(deadline.remaining, CHECK_SECONDS), 0.001))
            try:
                data = sock.recv(len(word) - len(heard))
            except TimeoutError:
                if not deadline.expired:
                    check()
                    continue
                raise RendezvousError(
                    f"rank {self.rank}: rank {rank} did not take a connection within"
                    f" {self._config.connect_timeout:g} s. See what it does instead, or raise"
                    " KADRIL_CONNECT_TIMEOUT"
                ) from None
            if not data:
                raise RendezvousError(
                    f"rank {self.rank}: rank {rank} left while ranks were connecting."
                    " Its own output says why"
                )
            heard += data
        if heard != word:
            raise RendezvousError(f"rank {self.rank}: rank {rank} broke the protocol: {heard!r}")

    def close(self) -> None:
        """Accept no more connections; those that were made stay."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._mailbox.close()
        for sock in self._arrived.values():
            sock.close()
        self._arrived.clear()


def open_connector(bootstrap: Bootstrap, layout: Layout, hub: Hub, config: Config) -> Connector:
    """Open the port of each host, and tell all ranks; collective.

    Raises:
        ConfigError: the job has no secret, by which ranks could prove themselves.
        RendezvousError: a host cannot listen.
    """
    secret = bootstrap.secret
    if secret is None:
        raise ConfigError(
            "transport 'tcp' needs a secret that all ranks know: give them the same file in"
            " KADRIL_SECRET_FILE, or use transport 'auto'"
        )
    with contextlib.ExitStack() as stack:
        mailbox, mailboxes = open_mailboxes(layout.host_of(bootstrap.rank), hub)
        for each in (mailbox, *mailboxes.values()):
            stack.callback(each.close)
        acceptors: list[Acceptor] = []

        def listen() -> bytes:
            if hub.rank > 0:
                return pack({"host": "", "port": 0})
            listener = bootstrap.listener or listen_at(bootstrap, layout, config)
            host, port = listener.getsockname()[:2]
            acceptors.append(
                Acceptor(listener, secret, bootstrap.job, bootstrap.generation, mailboxes)
            )
            stack.callback(acceptors[0].close)
            return pack({"host": host, "port": port})

        blobs = agree(bootstrap, "listen for the ranks of its host", listen)
        source = inet.address_of(config.interface) if config.interface else ""
        places = []
        for rank in range(bootstrap.size):
            leader = layout.host_of(rank)[0]
            told = unpack(blobs[leader], {"host": str, "port": int}, f"rank {leader}")
            places.append(TcpPlace(str(told["host"]), int(str(told["port"])), source))
        stack.pop_all()
    acceptor = acceptors[0] if acceptors else None
    return Connector(bootstrap, secret, places, mailbox, acceptor, config)


def open_mailboxes(ranks: Sequence[int], hub: Hub) -> tuple[Connection, dict[int, Connection]]:
    """Open this rank's mailbox for connections; on the first rank, also the other ends of all."""
    mine, theirs = socket.socketpair()
    with theirs:
        ends = hub.allgather_fds(theirs.fileno())
    if hub.rank > 0:
        for end in ends:
            os.close(end)
        ends = []
    sockets = [close_in_children(each) for each in (mine, *(socket.socket(fileno=e) for e in ends))]
    first, *others = (Connection(each) for each in sockets)
    for connection in (first, *others):
        connection.trust()
    return first, dict(zip(ranks, others, strict=False))


def listen_at(bootstrap: Bootstrap, layout: Layout, config: Config) -> socket.socket:
    """Listen on a free port of the address by which other hosts reach this one."""
    if config.interface:
        address = inet.address_of(config.interface)
    elif len(layout.hosts) == 1:
        address = "127.0.0.1"
    else:
        address = bootstrap.address or socket.gethostname()
    try:
        return inet.bind(address, 0)
    except OSError as error:
        raise RendezvousError(
            f"rank {bootstrap.rank} cannot listen at {address}: {error}. Name the interface that"
            " other hosts reach this one by in KADRIL_INTERFACE"
        ) from error
