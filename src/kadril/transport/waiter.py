"""A waiter: a thread that waits in our place, where a wait can be neither cut nor interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Ticket", "Waiter"]


class Ticket:
    """A blocking function, and whether it has returned. The function must not raise."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait
        self.done = threading.Event()


class Waiter:
    """Serves tickets one after the other, in a thread that is started with the first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tickets: SimpleQueue[Ticket | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, wait: Callable[[], None]) -> Ticket:
        """Have a blocking function called."""
        ticket = Ticket(wait)
        if self._thread is None:
            # A daemon, since what it waits for may never come.
            self._thread = threading.Thread(
                target=serve, args=(self._tickets,), name=self.name, daemon=True
            )
            self._thread.start()
        self._tickets.put(ticket)
        return ticket

    def dismiss(self) -> None:
        """End the thread after what it waits for."""
        self._tickets.put(None)


def serve(tickets: SimpleQueue[Ticket | None]) -> None:
    """The thread. It knows of the tickets only, so that it keeps nothing alive while it is idle."""
    while (ticket := tickets.get()) is not None:
        ticket.wait()
        ticket.done.set()
        del ticket
