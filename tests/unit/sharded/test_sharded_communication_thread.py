"""The thread that communicates in the background: what is not run after an error."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kadril.sharded.reduction.communication_thread import CommunicationThread


class Errors(list[BaseException]):
    """A list that says when it has its first error."""

    def __init__(self) -> None:
        super().__init__()
        self.has_come = threading.Event()

    def append(self, error: BaseException) -> None:
        super().append(error)
        self.has_come.set()


class HeldQueue(queue.SimpleQueue[Any]):
    """A queue that gives nothing out after an error, until something is put in or it is let go."""

    def __init__(self, has_failed: threading.Event) -> None:
        self._has_failed = has_failed
        self.let_go = threading.Event()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        if self._has_failed.is_set():
            self.let_go.set()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self._has_failed.is_set():
            self.let_go.wait()
        return super().get(block, timeout)


def test_what_is_queued_behind_an_error_is_not_run() -> None:
    """`submit` forgot the error that it raised, and the worker, which came later, went on."""
    thread = CommunicationThread()
    errors = Errors()
    tasks = HeldQueue(errors.has_come)
    thread._errors, thread._tasks = errors, tasks
    may_fail = threading.Event()
    ran: list[int] = []

    def fail() -> None:
        may_fail.wait()
        raise ValueError("the first task")

    def task(number: int) -> Callable[[], None]:
        return lambda: ran.append(number)

    thread.submit(fail)
    thread.submit(task(1))
    may_fail.set()
    assert errors.has_come.wait(60)
    with pytest.raises(ValueError, match="the first task"):
        thread.submit(task(2))
    tasks.let_go.set()
    thread.wait()
    assert ran == []
    thread.submit(task(3))
    thread.wait()
    assert ran == [3]
