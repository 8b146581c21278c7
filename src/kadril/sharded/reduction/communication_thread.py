"""A thread that communicates while this rank computes, one task after the other.

Over a network a reduction is mostly waiting, for which a thread of its own is just right. On shared
memory it is work of this core itself, and a second thread would only get in the way of the backward
pass (measured for kadril.torch: optimizer/overlap.py); there it is done where it falls due.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TypeAlias

from kadril.transport.base import Transport

__all__ = ["CommunicationThread", "communication_thread_for"]

logger = logging.getLogger("kadril")

Task: TypeAlias = Callable[[], object]


class CommunicationThread:
    """Runs tasks in the order in which they came; the thread starts with the first of them."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._is_started = False
        self._errors: list[BaseException] = []

    def submit(self, task: Task) -> None:
        """Queue a task.

        Raises:
            BaseException: what an earlier task raised; neither this one is run then, nor any that
                was queued behind that one.
        """
        if self._errors:
            self.wait()  # until the worker has passed over what it may not run
        if not self._is_started:
            self._is_started = True
            arguments = (self._tasks, self._errors)
            threading.Thread(
                target=work, args=arguments, name="kadril.sharded", daemon=True
            ).start()
            weakref.finalize(self, self._tasks.put, None).atexit = False
        self._tasks.put(task)

    def wait(self) -> None:
        """Wait until all tasks are done.

        Raises:
            BaseException: what one of them raised.
        """
        if self._is_started:
            done = threading.Event()
            self._tasks.put(done.set)
            done.wait()
        if self._errors:
            error = self._errors[0]
            self._errors.clear()
            raise error


def communication_thread_for(transport: Transport) -> CommunicationThread | None:
    """Make a thread for a transport; None where calls are better made by the caller, or must be."""
    if not transport.overlaps:
        return None
    if not transport.takes_any_thread:
        logger.info(
            "this MPI was initialized for one thread only: gradients are reduced, and parameters"
            " gathered, while nothing is computed; set mpi4py.rc.thread_level = 'multiple' before"
            " mpi4py.MPI is imported"
        )
        return None
    return CommunicationThread()


def work(tasks: queue.SimpleQueue[Task | None], errors: list[BaseException]) -> None:
    """Run tasks until one is None; after an error only those that report the end."""
    while True:
        task = tasks.get()
        if task is None:
            return
        is_signal = getattr(task, "__func__", None) is threading.Event.set
        if not errors or is_signal:
            try:
                task()
            except BaseException as error:  # handed to whoever waits
                errors.append(error)
        del task  # it holds gradients
