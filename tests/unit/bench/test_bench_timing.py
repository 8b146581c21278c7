"""The order of things around the clock, which makes samples comparable."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest

from kadril.bench.timing import take_samples


def recorder(events: list[str], name: str) -> Callable[[], None]:
    return lambda: events.append(name)


def test_every_sample_starts_with_a_touch_and_a_barrier() -> None:
    events: list[str] = []
    seconds = take_samples(
        recorder(events, "call"),
        barrier=recorder(events, "barrier"),
        touch=recorder(events, "touch"),
        num_calls=1,
        num_samples=3,
    )
    first = events.index("touch")
    assert set(events[:first]) == {"call"}, "warm-up comes first"
    assert events[first:] == ["touch", "barrier", "call"] * 3
    assert len(seconds) == 3


def test_short_calls_are_timed_together() -> None:
    events: list[str] = []
    seconds = take_samples(
        lambda: time.sleep(0.002),
        barrier=recorder(events, "barrier"),
        touch=None,
        num_calls=5,
        num_samples=2,
    )
    assert events == ["barrier"] * 2
    assert all(0.002 <= one < 0.01 for one in seconds), "seconds of one call, not of the batch"


def test_touch_and_barrier_are_not_timed() -> None:
    seconds = take_samples(
        lambda: None,
        barrier=lambda: time.sleep(0.03),
        touch=lambda: time.sleep(0.03),
        num_calls=1,
        num_samples=2,
    )
    assert max(seconds) < 0.02


def test_the_garbage_collector_waits_and_comes_back() -> None:
    states: list[bool] = []
    take_samples(
        lambda: states.append(gc.isenabled()),
        barrier=lambda: None,
        touch=None,
        num_calls=1,
        num_samples=1,
    )
    assert not any(states)
    assert gc.isenabled()


def test_it_comes_back_after_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError):
        take_samples(lambda: 1 / 0, barrier=lambda: None, touch=None, num_calls=1, num_samples=1)
    assert gc.isenabled()
