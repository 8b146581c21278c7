"""Settings take turns: everybody once per round, nobody always first, and only calls are timed."""

from __future__ import annotations

import gc

import pytest
from harness.setting import Setting, time_settings
from harness.turns import slowest


def record(log: list[str], word: str) -> object:
    return log.append(word)


def test_another_begins_in_each_round() -> None:
    log: list[str] = []
    settings = [
        Setting(name, lambda name=name: record(log, name), num_warm_ups=0)  # type: ignore[misc]
        for name in "abc"
    ]
    samples = time_settings(settings, num_rounds=4, barrier=lambda: None)
    assert "".join(log) == "abc" + "bca" + "cab" + "abc"
    assert {name: len(rounds) for name, rounds in samples.items()} == {"a": 4, "b": 4, "c": 4}


def test_what_happens_in_a_turn() -> None:
    log: list[str] = []
    setting = Setting(
        "s",
        lambda: record(log, "call"),
        num_calls=2,
        num_samples=2,
        num_warm_ups=1,
        enter=lambda: record(log, "enter"),
        leave=lambda: record(log, "leave"),
    )
    samples = time_settings([setting], num_rounds=1, barrier=lambda: record(log, "barrier"))
    sample = ["barrier", "call", "call"]
    assert log == ["enter", "call", *sample, *sample, "leave"]
    assert [len(turn) for turn in samples["s"]] == [2]


def test_a_sample_is_time_per_call_times_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 16.0])
    monkeypatch.setattr("kadril.bench.timing.perf_counter", lambda: next(clock))
    setting = Setting("s", lambda: None, num_calls=3, scale=10.0)
    assert time_settings([setting], num_rounds=1, barrier=lambda: None) == {"s": [[20.0]]}


def test_a_turn_that_fails_is_left() -> None:
    left: list[str] = []

    def fail() -> None:
        raise RuntimeError("no")

    setting = Setting("s", fail, leave=lambda: record(left, "left"))
    with pytest.raises(RuntimeError, match="no"):
        time_settings([setting], num_rounds=1, barrier=lambda: None)
    assert left == ["left"]
    assert gc.isenabled()


def test_the_slowest_rank_counts() -> None:
    ranks = [{"s": [[1.0, 5.0], [2.0]]}, {"s": [[3.0, 4.0], [1.0]]}]
    assert slowest(ranks) == {"s": [[3.0, 5.0], [2.0]]}
