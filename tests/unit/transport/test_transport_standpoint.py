"""Count of the threads that might still make a call, where a deadlock is to be proven."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kadril.engine.conductor import num_user_threads
from kadril.transport.standpoint import num_calling_threads
from kadril.world.session import has_callers


@contextmanager
def running(target: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=target.wait)
    thread.start()
    try:
        yield
    finally:
        target.set()
        thread.join()


def test_any_thread_of_the_program_counts() -> None:
    """Nobody knows whether it makes its first call one day."""
    before = num_calling_threads(), num_user_threads()
    with running(threading.Event()):
        assert (num_calling_threads(), num_user_threads()) == (before[0] + 1, before[1] + 1)


def test_a_thread_that_feeds_a_queue_does_not() -> None:
    """With one such thread in the process, no deadlock of its rank was ever proven."""
    before = num_calling_threads(), num_user_threads()
    num_threads = threading.active_count()
    queue: multiprocessing.Queue[int] = multiprocessing.Queue()
    queue.put(1)
    assert queue.get() == 1  # so the thread is in its function
    assert threading.active_count() == num_threads + 1
    assert (num_calling_threads(), num_user_threads()) == before
    queue.close()
    queue.join_thread()


@pytest.mark.parametrize("look", [num_calling_threads, num_user_threads, has_callers])
def test_a_look_at_threads_keeps_nothing_alive(look: Callable[[], object]) -> None:
    """A frame that held itself kept the gradients of its callers, until garbage was collected."""

    def refer() -> weakref.ref[object]:
        referred = threading.Event()
        look()
        return weakref.ref(referred)

    gc.disable()
    try:
        assert refer()() is None
    finally:
        gc.enable()
