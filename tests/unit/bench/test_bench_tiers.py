"""The bars of `benchmarks/tiers`, what the cost model predicts, and facts of workloads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType

import pytest
from harness.claim import with_others
from harness.results import Results, Series
from test_bench_results import load_check_bars, make_results

WORKLOAD = "2x2, 100 Mbit/s, 6.4 MiB"
SMALL = "2x2, 100 Mbit/s, 1 KiB"
BOUND = 0.5613  # seconds: 6.4 MiB at 100 Mbit/s less the headers of frames


@pytest.fixture(scope="module")
def tiers() -> ModuleType:
    return load_check_bars("tiers")


def measured(**seconds: float) -> Results:
    """Results of 2x2 on the slow link, by setting; all at the same speed for 1 KiB."""
    names = {
        name: name.replace("_", ", ").replace("round, robin", "round robin") for name in seconds
    }
    series = [Series(WORKLOAD, names[name], [[value]] * 3) for name, value in seconds.items()]
    series += [Series(SMALL, "gloo", [[2.0]]), Series(SMALL, "tiered", [[1.0]])]
    results = make_results("tiers", *series)
    return dataclasses.replace(
        results, facts={WORKLOAD: {"tiered": 1.01, "tiered, round robin": 1.5}}
    )


def states(tiers: ModuleType, results: Results) -> dict[str, str]:
    return {
        bar.text.removeprefix("2x2, 100 Mbit/s: "): bar.state
        for bar in tiers.check_bars(results)
        if bar.state != "not measured"
    }


def test_bars(tiers: ModuleType) -> None:
    results = measured(
        tiered=BOUND / 0.95,
        tiered_bf16=BOUND / 1.8,
        tiered_round_robin=BOUND / 0.85,
        gloo=BOUND * 1.5,
        MPICH=BOUND * 1.2,
    )
    assert states(tiers, results) == {
        "tiered, 1.03x of the least volume on every uplink": "reached",
        "tiered, round robin, 1.03x of the least volume on every uplink": "missed",
        "tiered, 0.90 of the bound": "reached",
        "1.4x as fast as gloo": "reached",
        "at most 1.05x of the best MPI": "reached",
        "bf16 1.7x as fast": "reached",
        "round robin at most 1.05x": "missed",
        "1 KiB not slower than gloo": "reached",
        "cost model: within 20% of all large all-reduces at 100 Mbit/s": "reached",
    }


def test_a_forecast_that_is_off_is_told(tiers: ModuleType) -> None:
    results = measured(tiered=BOUND, gloo=BOUND * 3)
    (bar,) = [bar for bar in tiers.check_bars(results) if "cost model" in bar.text]
    assert bar.state == "missed"
    assert bar.measured == f"-49.9% at worst ({WORKLOAD}, gloo)"
    (line,) = tiers.describe(results)
    assert "tiered 562 (561), gloo 844 (1684)" in line


def test_nothing_measured_is_nothing_reached(tiers: ModuleType) -> None:
    bars = list(tiers.check_bars(make_results("tiers")))
    assert {bar.state for bar in bars} == {"not measured"}


def test_facts_of_other_workloads_are_kept(tmp_path: Path) -> None:
    # They were lost with `--only`: a file then had times without the volume that goes with them.
    before = make_results("tiers", Series("a", "s", [[1.0]]), a=1, b=2)
    before.write(tmp_path, [])
    joined = with_others(make_results("tiers", Series("b", "s", [[1.0]]), b=3), tmp_path)
    assert joined.facts == {"a": 1, "b": 3}
    assert [series.workload for series in joined.series] == ["a", "b"]
