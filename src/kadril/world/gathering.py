"""Gathering of the ranks of a hub, by rank 0.

Every process that proves to be of the job is heard, whatever it claims; then the gathering succeeds
or fails for all of them at once, and each is told the same reason:

    all ranks came                              -> START to all
    two claims do not fit together, or one left -> FAILED to all, naming both sides
    time is up                                  -> FAILED to all, naming who is missing

A claim of an earlier generation is refused and harms nobody. One of a later generation comes from a
rank that went faster through `shutdown()` and `init()`: it is held until rank 0 gets there.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import weakref
from collections.abc import Callable

from kadril.errors import RendezvousError, name_ranks
from kadril.world.deadline import Deadline
from kadril.world.door import Door, Guest, Visitor
from kadril.world.fields import pack
from kadril.world.handshake import Claim
from kadril.world.wire import Connection, Kind, PeerClosedError, WireError

__all__ = ["Gathering", "hold", "release_held"]

logger = logging.getLogger("kadril")

# After a fault, how long to keep listening, so that ranks which are still starting hear of it too.
LINGER_SECONDS = 2.0
TELL_SECONDS = 1.0

# Guests of a later generation, for each listening socket.
_held: weakref.WeakKeyDictionary[socket.socket, list[Guest]] = weakref.WeakKeyDictionary()


class Gathering:
    """One gathering of `mine.size` ranks at a listening socket; `run()` once."""

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        mine: Claim,
        timeout: float,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._mine = mine
        self._timeout = timeout
        self._deadline = Deadline(timeout, is_cancelled)
        self._selector = selectors.DefaultSelector()
        self._door = Door(listener, secret, mine.job, self._selector)
        self._members: dict[int, Guest] = {}
        self._misfits: list[Guest] = []
        self._fault = ""

    def run(self) -> dict[int, Connection]:
        """Gather all ranks; gives the connection to each.

        Raises:
            RendezvousError: the gathering failed; all that came have been told.
        """
        try:
            for guest in _held.pop(self._listener, []):
                self._admit(guest)
            while not self._is_over():
                self._step()
            self._conclude()
        except BaseException:
            self._close_all()
            raise
        finally:
            self._door.close()
            self._selector.close()
        return {rank: guest.connection for rank, guest in self._members.items()}

    def _is_over(self) -> bool:
        heard = self._members.keys() | {guest.claim.rank for guest in self._misfits}
        return heard >= set(range(1, self._mine.size)) or self._deadline.expired

    def _step(self) -> None:
        timeout = min(self._deadline.look_again, self._door.next_expiry)
        for key, _events in self._selector.select(timeout):
            if key.data is self._door:
                self._door.accept()
            elif isinstance(key.data, Visitor):
                guest = self._door.hear(key.data)
                if isinstance(guest, Guest):
                    self._admit(guest)
                elif guest is not None:
                    guest.connection.close()  # for a rank of a world that is over, or not yet
            else:
                self._notice(key.data)
        self._door.expire()

    def _admit(self, guest: Guest) -> None:
        """Decide what to do with a process that has proved to be of the job."""
        claim, mine = guest.claim, self._mine
        if claim.version == mine.version and claim.generation > mine.generation:
            hold(self._listener, guest)
            return
        if claim.version == mine.version and claim.generation < mine.generation:
            self._refuse(guest)
            return
        try:
            guest.answer(self._secret, Kind.WELCOME, pack({"remaining": self._deadline.remaining}))
        except (PeerClosedError, TimeoutError):  # one that was held may have left meanwhile
            guest.connection.close()
            return
        self._selector.register(guest.connection, selectors.EVENT_READ, guest)
        fault = self._misfit(guest)
        if fault:
            self._misfits.append(guest)
            self._set_fault(fault)
        else:
            self._members[claim.rank] = guest

    def _misfit(self, guest: Guest) -> str:
        """Return why a claim contradicts that of rank 0 or of another guest, or nothing."""
        claim, mine = guest.claim, self._mine
        if claim.version != mine.version:
            return (
                f"rank 0 speaks version {mine.version} of the rendezvous and {guest} version"
                f" {claim.version}. Install the same kadril for all ranks"
            )
        if claim.size != mine.size:
            return (
                f"rank 0 was told that the world has {mine.size} ranks, and {guest} that it has"
                f" {claim.size}. Start all ranks with the same number of ranks"
            )
        if not 0 < claim.rank < mine.size:
            return (
                f"{guest} is not one of ranks 1 to {mine.size - 1}. Give each process its own rank"
            )
        if claim.rank in self._members:
            return (
                f"two processes claim rank {claim.rank}: {self._members[claim.rank].source} and"
                f" {guest.source}. Give each process its own rank; a child process of a rank has"
                " to be started without its KADRIL_* variables"
            )
        return ""

    def _refuse(self, guest: Guest) -> None:
        text = (
            f"generation {guest.claim.generation} of this job is over, it is in generation"
            f" {self._mine.generation}. Call init() and shutdown() equally often on all ranks"
        )
        logger.warning("rendezvous: refused %s: %s", guest, text)
        with contextlib.suppress(PeerClosedError, TimeoutError):
            guest.answer(self._secret, Kind.REFUSED, text.encode())
        guest.connection.close()

    def _notice(self, guest: Guest) -> None:
        """A guest that waits for START has something to say: it can only have left."""
        try:
            if guest.connection.poll() is None:
                return
            said = "broke the protocol"
        except WireError:
            said = "broke the protocol"
        except PeerClosedError:
            said = "left or died"
        self._selector.unregister(guest.connection)
        self._set_fault(
            f"rank {guest.claim.rank} ({guest.source}) {said} while the ranks were meeting."
            " Its own output says why"
        )

    def _set_fault(self, fault: str) -> None:
        """Keep the first fault; what follows is most often its consequence."""
        if not self._fault:
            self._fault = fault
            self._deadline.shorten(LINGER_SECONDS)

    def _conclude(self) -> None:
        missing = [rank for rank in range(1, self._mine.size) if rank not in self._members]
        if not self._fault and missing:
            self._fault = (
                f"{name_ranks(missing)} of {self._mine.size} did not come within"
                f" {self._timeout:g} s. See whether they were started and reached kadril.init(),"
                " or raise KADRIL_CONNECT_TIMEOUT"
            )
        if self._fault:
            self._tell(Kind.FAILED, self._fault.encode())
            raise RendezvousError(f"rank 0: {self._fault}")
        self._tell(Kind.START)

    def _tell(self, kind: Kind, payload: bytes = b"") -> None:
        for guest in [*self._members.values(), *self._misfits]:
            # Whoever does not take it is noticed in the first exchange.
            with contextlib.suppress(PeerClosedError, TimeoutError):
                guest.connection.send(kind, payload, deadline=Deadline(TELL_SECONDS))

    def _close_all(self) -> None:
        for guest in [*self._members.values(), *self._misfits]:
            guest.connection.close()


def hold(listener: socket.socket, guest: Guest) -> None:
    """Keep a guest until rank 0 gathers its generation at this socket."""
    _held.setdefault(listener, []).append(guest)


def release_held(listener: socket.socket) -> None:
    """Let go of guests that were held for a later generation: their socket goes away."""
    for guest in _held.pop(listener, []):
        guest.connection.close()
