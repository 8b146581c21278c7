"""A thread that waits in place of another, where a wait can be neither cut nor interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Wait", "Waiter"]


class Wait:
    """A blocking function, and whether it has returned. The function must not raise."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait
        self.done = threading.Event()


class Waiter:
    """Serves waits one after the other, in a thread that is started with the first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._waits: SimpleQueue[Wait | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, wait: Callable[[], None]) -> Wait:
        """Have a blocking function called."""
        pending = Wait(wait)
        if self._thread is None:
            # A daemon, since what it waits for may never come.
            self._thread = threading.Thread(
                target=serve, args=(self._waits,), name=self.name, daemon=True
            )
            self._thread.start()
        self._waits.put(pending)
        return pending

    def dismiss(self) -> None:
        """End the thread after what it waits for."""
        self._waits.put(None)


def serve(waits: SimpleQueue[Wait | None]) -> None:
    """The thread. It knows of the waits only, so that it keeps nothing alive while it is idle."""
    while (pending := waits.get()) is not None:
        pending.wait()
        pending.done.set()
        del pending
