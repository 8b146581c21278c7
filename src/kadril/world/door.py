"""The door of a hub: lets members of the job in, and keeps strangers from being in the way.

Connections are looked after concurrently, so one that says nothing, or sends a byte a minute,
delays nobody. Each has 5 seconds for its proof. At most 64 may be unproven at a time; the oldest is
dropped for the next.

    accepted --(other user, where that is known)----> closed
       |
    challenged --(no proof in 5 s, not a claim,
       |          wrong proof, 64 newer ones)-------> closed
       |
    Guest: proved to be of this job; or Caller, where it wants to reach a rank of this host
"""

from __future__ import annotations

import errno
import logging
import os
import select
import selectors
import socket
import time
from dataclasses import dataclass

from kadril.errors import RendezvousError
from kadril.world.deadline import Deadline
from kadril.world.handshake import Claim, LinkClaim, check_claim, make_nonce, make_verdict
from kadril.world.wire import Connection, Kind, PeerClosedError, WireError

__all__ = ["MAX_VISITORS", "PROOF_SECONDS", "Caller", "Door", "Guest", "Visitor"]

logger = logging.getLogger("kadril")

MAX_VISITORS = 64
PROOF_SECONDS = 5.0
ACCEPT_AT_ONCE = 32  # then look at those that are in, so that a flood cannot starve them
SEND_SECONDS = 1.0
MAX_SOURCES = 256  # of log lines


@dataclass(eq=False)
class Visitor:
    """A connection that has not proved anything yet."""

    connection: Connection
    source: str
    challenge: bytes
    arrived: float


@dataclass(eq=False)
class Proven:
    """A connection that has proved to be of this job."""

    connection: Connection
    source: str
    challenge: bytes
    payload: bytes

    def answer(self, secret: bytes, kind: Kind, text: bytes) -> None:
        """Send the verdict with rank 0's own proof.

        Raises:
            PeerClosedError: it is gone.
            TimeoutError: it does not read.
        """
        verdict = make_verdict(secret, self.challenge, self.payload, kind, text)
        self.connection.send(kind, verdict, deadline=Deadline(SEND_SECONDS))


@dataclass(eq=False)
class Guest(Proven):
    """One that wants to join the hub."""

    claim: Claim

    def __str__(self) -> str:
        return f"{self.source} (rank {self.claim.rank} of {self.claim.size})"


@dataclass(eq=False)
class Caller(Proven):
    """One that wants to reach a rank of this host."""

    claim: LinkClaim

    def __str__(self) -> str:
        return f"{self.source} (rank {self.claim.source} to rank {self.claim.target})"


class Door:
    """Accepts and checks connections of one listening socket, within the selector of its owner."""

    def __init__(
        self, listener: socket.socket, secret: bytes, job: str, selector: selectors.BaseSelector
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._job = job
        self._selector = selector
        self._visitors: list[Visitor] = []  # oldest first
        self._sources: set[str] = set()
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self)

    @property
    def next_expiry(self) -> float:
        """Seconds until the oldest visitor has to be dropped."""
        if not self._visitors:
            return PROOF_SECONDS
        return max(0.0, self._visitors[0].arrived + PROOF_SECONDS - time.monotonic())

    def accept(self) -> None:
        """Take in connections that wait, and challenge them."""
        for _ in range(ACCEPT_AT_ONCE):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if not self._make_room(error):
                    return
                continue
            self._challenge(Connection(sock))

    def _challenge(self, connection: Connection) -> None:
        source = connection.source()
        uid = connection.credentials()[1] if connection.is_local else os.geteuid()
        if uid != os.geteuid():
            self._warn(source, f"it runs as user {uid}")
            connection.close()
            return
        visitor = Visitor(connection, source, make_nonce(), time.monotonic())
        try:
            connection.send(Kind.CHALLENGE, visitor.challenge, deadline=Deadline(SEND_SECONDS))
        except (PeerClosedError, TimeoutError):
            connection.close()
            return
        if len(self._visitors) == MAX_VISITORS:
            oldest = self._visitors[0]
            self._warn(oldest.source, f"{MAX_VISITORS} newer connections wait for their proof")
            self._drop(oldest)
        self._visitors.append(visitor)
        self._selector.register(connection, selectors.EVENT_READ, visitor)

    def _make_room(self, error: OSError) -> bool:
        """Drop the oldest stranger, since descriptors ran out, or give up where there is none.

        Returns whether somebody waits for that: the kernel says that descriptors ran out before it
        looks whether there is a connection, and the oldest may be a rank that is about to prove it.
        """
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise RendezvousError(f"rank 0 cannot accept connections: {error.strerror}") from error
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        if not waiting.poll(0):
            return False
        if not self._visitors:
            raise RendezvousError(
                "rank 0 has no descriptor left to accept the other ranks. Raise the limit: ulimit"
                " -n"
            ) from error
        self._drop(self._visitors[0])
        return True

    def hear(self, visitor: Visitor) -> Guest | Caller | None:
        """Read what a visitor sent; a guest or caller if it is a claim with the right proof."""
        if visitor not in self._visitors:
            return None  # dropped for a newer one since the selector reported it
        connection = visitor.connection
        try:
            frame = connection.poll()
            if frame is None:
                return None
            if frame.kind is not Kind.CLAIM:
                raise WireError(f"it sent {frame.kind.name} where a claim was due")
            claim = check_claim(self._secret, frame.payload, visitor.challenge, self._job)
        except PeerClosedError:
            self._drop(visitor)
            return None
        except WireError as error:
            self._warn(visitor.source, str(error))
            self._drop(visitor)
            return None
        self._forget(visitor)
        connection.trust()
        facts = (connection, visitor.source, visitor.challenge, frame.payload)
        return Guest(*facts, claim) if isinstance(claim, Claim) else Caller(*facts, claim)

    def expire(self) -> None:
        """Drop visitors whose time for a proof is over."""
        while self._visitors and self.next_expiry == 0.0:
            self._warn(self._visitors[0].source, f"no proof in {PROOF_SECONDS:.0f} s")
            self._drop(self._visitors[0])

    def close(self) -> None:
        """Drop all visitors, and leave the listening socket to its owner."""
        while self._visitors:
            self._drop(self._visitors[0])
        self._selector.unregister(self._listener)

    def _forget(self, visitor: Visitor) -> None:
        self._visitors.remove(visitor)
        self._selector.unregister(visitor.connection)

    def _drop(self, visitor: Visitor) -> None:
        self._forget(visitor)
        visitor.connection.close()

    def _warn(self, source: str, reason: str) -> None:
        """One line for each process or address: connections in a flood must not flood the log."""
        if source not in self._sources and len(self._sources) < MAX_SOURCES:
            self._sources.add(source)
            logger.warning("rendezvous: refused a connection of %s: %s", source, reason)
