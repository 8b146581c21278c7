"""The one port of a host: a thread of its first rank accepts connections for all of its ranks.

    rank 5, elsewhere --- TCP ---> acceptor (rank 0's thread) --- the descriptor ---> rank 2
                                   checks the proof: job,         over a socket pair
                                   generation, both ranks

Strangers are kept out as at any door (door.py). What comes for a later generation of rank 0's
rendezvous, at the same port, is held for it.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Mapping

from kadril.transport.forked_sockets import close_in_children
from kadril.world.deadline import Deadline
from kadril.world.door import Caller, Door, Guest, Visitor
from kadril.world.gathering import hold, release_held
from kadril.world.handshake import PROTOCOL_VERSION
from kadril.world.wire import Connection, Kind, PeerClosedError

__all__ = ["ARRIVAL", "Acceptor"]

logger = logging.getLogger("kadril")

# What goes with a descriptor: world rank that connected, digest of the group's label.
ARRIVAL = struct.Struct("!I32s")
FORWARD_SECONDS = 1.0
PAUSE_SECONDS = 0.05  # after a problem, such as no descriptor left, before the next attempt


class Acceptor:
    """Accepts connections for the ranks of this host, in a thread of its own.

    Args:
        listener: a listening socket, the acceptor's from now on.
        secret: of the job.
        job: name of the job.
        generation: of the world.
        mailboxes: where to send what comes for each world rank of this host.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        job: str,
        generation: int,
        mailboxes: Mapping[int, Connection],
    ) -> None:
        self._listener = close_in_children(listener)
        self._secret = secret
        self._generation = generation
        self._mailboxes = mailboxes
        self._reported: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._door = Door(listener, secret, job, self._selector)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="kadril-acceptor", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            for key, _events in self._selector.select(self._door.next_expiry):
                if key.data is None:
                    return
                try:
                    self._handle(key.data)
                except Exception as error:  # whatever came, the next connection must be served
                    self._report(error)
            self._door.expire()

    def _report(self, error: Exception) -> None:
        """Log a problem once, and give it time to pass: what waits at the door still does."""
        if repr(error) not in self._reported:
            self._reported.add(repr(error))
            logger.warning("the port of this host: %s", error)
        time.sleep(PAUSE_SECONDS)

    def _handle(self, what: Door | Visitor) -> None:
        if isinstance(what, Door):
            what.accept()
            return
        proven = self._door.hear(what)
        if isinstance(proven, Guest) and proven.claim.generation > self._generation:
            hold(self._listener, proven)
        elif isinstance(proven, Caller):
            self._forward(proven)
        elif proven is not None:
            proven.connection.close()

    def _forward(self, caller: Caller) -> None:
        """Hand a connection to the rank that it is for."""
        claim = caller.claim
        mailbox = self._mailboxes.get(claim.target)
        try:
            if (claim.version, claim.generation) != (PROTOCOL_VERSION, self._generation):
                text = f"this host is in generation {self._generation} of the job"
                caller.answer(self._secret, Kind.REFUSED, text.encode())
            elif mailbox is None:
                text = f"rank {claim.target} is not on this host"
                caller.answer(self._secret, Kind.REFUSED, text.encode())
            else:
                caller.answer(self._secret, Kind.WELCOME, b"")
                mailbox.send(
                    Kind.DESCRIPTOR,
                    ARRIVAL.pack(claim.source, claim.group),
                    deadline=Deadline(FORWARD_SECONDS),
                    descriptor=caller.connection.fileno(),
                )
        except (PeerClosedError, TimeoutError) as error:
            logger.debug("%s could not be forwarded: %r", caller, error)
        finally:
            caller.connection.close()  # the rank has its own copy

    def close(self) -> None:
        """Stop listening; may be called again."""
        if self._wake < 0 or os.getpid() != self._pid:
            return
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._door.close()
        self._selector.close()
        os.close(self._wake)
        self._wake = -1
        release_held(self._listener)
        self._listener.close()
        for mailbox in self._mailboxes.values():
            mailbox.close()
