"""The thread that waits in our place."""

from __future__ import annotations

import threading

from kadril.transport.waiter import Waiter


def test_waits_are_served_in_order_and_the_thread_ends() -> None:
    served: list[int] = []
    hold = threading.Event()
    waiter = Waiter("test-waiter")

    def wait_and_serve() -> None:
        hold.wait(10.0)
        served.append(1)

    first = waiter.ask(wait_and_serve)
    second = waiter.ask(lambda: served.append(2))
    assert not first.done.wait(0.01)  # this thread is free while that one waits
    assert served == []
    hold.set()
    assert second.done.wait(10.0)
    assert first.done.is_set()
    assert served == [1, 2]
    thread = next(thread for thread in threading.enumerate() if thread.name == "test-waiter")
    assert thread.daemon
    waiter.dismiss()
    thread.join(10.0)
    assert not thread.is_alive()


def test_a_waiter_that_is_never_asked_starts_no_thread() -> None:
    waiter = Waiter("idle-waiter")
    waiter.dismiss()
    assert "idle-waiter" not in [thread.name for thread in threading.enumerate()]
