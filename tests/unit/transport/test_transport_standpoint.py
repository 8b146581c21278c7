"""Count of the threads that might still make a call, where a deadlock is to be proven."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kadril.engine.conductor import num_user_threads
from kadril.transport.standpoint import num_calling_threads


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
