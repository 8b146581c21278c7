"""Results of turns: ratios round by round, files, and the bars of several claims."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from harness.bars import Bar, Spread
from harness.check import check_files
from harness.claim import Claim
from harness.results import Measured, Results, Series

from kadril.errors import ConfigError

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def make_results(theme: str, *series: Series, **facts: object) -> Results:
    return Results(
        theme=theme,
        title="A title",
        date="2026-11-16T01:00:00+00:00",
        command="run.py --rounds 2",
        num_ranks=2,
        machine={"cpu": "Abacus 9", "cores": [0, 1], "memory": 2**34, "kernel": "K", "libc": "L"},
        load={"begin": [0.1], "end": [0.2]},
        versions={"kadril": "0.1.0"},
        missing={"Peer": "not here"},
        facts=facts,
        series=series,
    )


def load_check_bars(theme: str) -> ModuleType:
    path = BENCHMARKS / theme / "check_bars.py"
    spec = importlib.util.spec_from_file_location(f"{theme}_check_bars", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_ratio_is_taken_round_by_round() -> None:
    # Ratios of the rounds are 3, 2 and 0.5; the ratio of both medians would be 4 / 8.
    above = Series("w", "a", [[3.0], [20.0], [4.0]])
    below = Series("w", "b", [[1.0], [10.0], [8.0]])
    results = make_results("t", above, below)
    assert results.ratio(above, below) == Spread(2.0, pytest.approx(0.8), pytest.approx(2.8))
    assert results.ratio(None, below) is None
    assert results.ratio(above, None) is None


def test_the_fastest_of_a_peers_settings_is_found() -> None:
    slow, fast = Series("w", "slow", [[3.0]]), Series("w", "fast", [[2.0]])
    results = make_results("t", slow, fast, Series("other", "fast", [[0.0]]))
    assert results.find("w", "slow", "fast") == fast
    assert results.find("w", "slow") == slow
    assert results.find("w", "none") is None


def test_a_results_file_is_written_and_read_again(tmp_path: Path) -> None:
    results = make_results(
        "tensors", Series("w", "s", [[0.5, 0.25]], "a note"), idle_world={"cpu": 1}
    )
    path = results.write(tmp_path / "results", [], ["something to know"])
    assert path.name == "tensors-abacus-9-2-cores-2026-11-16.json"
    assert Results.read(path) == dataclasses.replace(results, series=tuple(results.series))
    page = path.with_suffix(".md").read_text()
    assert "- without Peer: not here\n- something to know\n" in page
    assert "| s | 375 ms | 275 ms | 475 ms | 1 | a note |" in page
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not a results file"):
        Results.read(path)


STEPS = {
    "alone": 1.0,
    "kadril": 1.1,
    "timeline": 1.11,  # on; 1.1 without
    "DDP": 2.0,
    "DDP static": 1.9,
    "DDP views": 1.5,
    "DDP views static": 1.6,
}


def training_results(**changes: float) -> Results:
    steps = {**STEPS, **changes}
    traced = [
        Series("timeline", "off", [[1.1]]),
        Series("timeline", "on", [[steps.pop("timeline")]]),
    ]
    series = [Series("mlp", name, [[seconds]] * 3) for name, seconds in steps.items()]
    series += [Series("chain", "alone", [[1.0]]), Series("chain", "kadril", [[1.4]])]
    losses = {"mlp": {"kadril": [2.0, 1.0], "DDP": [2.0, 1.00001]}}
    return make_results("training", *series, *traced, losses=losses)


def test_bars_of_training() -> None:
    bars = list(load_check_bars("training").check_bars(training_results()))
    assert [bar.state for bar in bars] == ["reached"] * 6
    assert bars[1].measured.endswith("; DDP static")
    assert bars[2].measured.endswith("; DDP views")


@pytest.mark.parametrize(
    ("setting", "seconds", "missed"),
    [
        ("alone", 0.98, {0}),  # 1.1 / 0.98 is 1.122
        ("DDP", 1.7, {1}),  # the better one of DDP's settings counts
        ("DDP views static", 1.3, {2}),
        ("timeline", 1.13, {4}),
    ],
)
def test_a_bar_of_training_is_missed_by_a_little(
    setting: str, seconds: float, missed: set[int]
) -> None:
    bars = load_check_bars("training").check_bars(training_results(**{setting: seconds}))
    assert {i for i, bar in enumerate(bars) if bar.state == "missed"} == missed


def test_other_losses_than_those_of_ddp_are_seen() -> None:
    results = training_results()
    facts = {"losses": {"mlp": {"kadril": [2.0, 1.0], "DDP": [2.0, 1.001]}}}
    bars = list(load_check_bars("training").check_bars(dataclasses.replace(results, facts=facts)))
    assert bars[-1].state == "missed"


def tensors_results(scale: float, idle: float) -> Results:
    times = (
        ("500 tensors of 1000 floats", "kadril", 5e-3),
        ("500 tensors of 1000 floats", "kadril, grouped", 2e-3),
        ("10 000 tensors of 16 floats", "kadril", 0.1),
        ("one float", "kadril", 50e-6),
    )
    series = [Series(workload, name, [[scale * seconds]]) for workload, name, seconds in times]
    return make_results("tensors", *series, idle_world={"cpu": idle, "wall": 10.0})


def test_bars_of_tensors() -> None:
    check_bars = load_check_bars("tensors").check_bars
    assert {bar.state for bar in check_bars(tensors_results(1.0, 0.001))} == {"reached"}
    assert {bar.state for bar in check_bars(tensors_results(2.0, 1.0))} == {"missed"}


def test_bars_of_shapes_and_of_crowded_cores() -> None:
    for theme in ("shapes", "crowded"):
        module = load_check_bars(theme)
        for ours, state in ((1.02, "reached"), (1.7, "missed")):
            times = {"alone": 1.0, "DDP, views": 1.6, "DDP": 9.0}
            times |= dict.fromkeys(("kadril", "kadril, stage 1", "kadril, whole"), ours)
            series = [
                Series(workload, setting, [[seconds]])
                for workload in module.WORKLOADS
                for setting, seconds in times.items()
            ]
            bars = list(module.check_bars(make_results(theme, *series)))
            assert len(bars) >= 2 * len(module.WORKLOADS)
            assert {bar.state for bar in bars} == {state}


def test_a_claim_is_measured_in_parts(tmp_path: Path) -> None:
    """`--only` once replaces a workload in the results of the day, and leaves the others."""
    seconds = iter((1.0, 2.0, 3.0))

    def measure(num_rounds: int, wanted: Sequence[str]) -> Measured:
        each = next(seconds)
        return Measured([Series(name, "alone", [[each]] * num_rounds) for name in wanted])

    for arguments in ([], ["--only", "b"], ["--only", "a", "--rounds", "2"]):
        claim = Claim(
            theme="letters",
            title="Letters",
            num_ranks=1,
            num_rounds=1,
            measure=measure,
            check=lambda results: [Bar("letters are read", "", "reached")],
            workloads=("a", "b", "c"),
        )
        assert claim.run([*arguments, "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("letters-*.json")
    series = Results.read(path).series
    found = {each.workload: [list(one) for one in each.rounds] for each in series}
    assert found == {"a": [[3.0], [3.0]], "b": [[2.0]], "c": [[1.0]]}


def test_results_of_older_runs_can_be_read() -> None:
    """Figures that were published stay readable: their bars are printed by each `check_bars.py`."""
    themes = ("training", "tensors", "shapes", "crowded", "sharded", "partition")
    for theme in themes:
        paths = sorted((BENCHMARKS / "results").glob(f"{theme}-*.json"))
        assert paths
        for path in paths:
            bars = list(load_check_bars(theme).check_bars(Results.read(path)))
            assert any(bar.state == "reached" for bar in bars)


@pytest.mark.parametrize("theme", ["training", "tensors", "shapes", "crowded"])
def test_what_was_not_measured_is_not_reached(theme: str, tmp_path: Path) -> None:
    module = load_check_bars(theme)
    path = make_results(theme).write(tmp_path, [])
    assert {bar.state for bar in module.check_bars(make_results(theme))} == {"not measured"}
    assert check_files([str(path)], module.check_bars) == 1
    assert check_files([], module.check_bars) == 2
