"""The bars of `benchmarks/collectives`: reached, missed, or not measured, and never silently."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from bench_report import make_report
from harness.check import check_files

from kadril.bench.report import Idleness, Report
from kadril.bench.rounds import Key

FOLDER = Path(__file__).parents[3] / "benchmarks" / "collectives"
SIZES = (4, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
IDLE = Idleness(cpu=0.0004, wall=10.0)


@pytest.fixture(scope="module", autouse=True)
def _folder_on_path() -> Iterator[None]:
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))
    sys.modules.pop("check_bars", None)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def report(num_ranks: int, kadril: float = 1.0, zero_copy: float = 0.9) -> Report:
    """Kadril takes so many milliseconds; the peers are slower by just what the bars ask for."""
    peers = {"copy": 0.9, "gloo": 150.0, "openmpi": 5.0, "mpich": 5.0}
    series = {}
    for size in SIZES:
        for engine, value in {**peers, "kadril": kadril, "zero-copy": zero_copy}.items():
            series[Key("allreduce", size, "pinned", engine)] = [[value * 1e-3]] * 2
    return make_report(series, num_ranks)


def states(reports: dict[int, Report], idle: Idleness | None) -> dict[str, str]:
    module = load("check_bars")
    return {bar.text: bar.state for bar in module.check_bars(module.Found(reports, idle))}


def test_all_reached() -> None:
    found = states({2: report(2), 4: report(4)}, IDLE)
    assert set(found.values()) == {"reached"}
    assert len(found) == 9 + 5 * 3 + 1


def test_a_bar_is_missed_by_a_little() -> None:
    found = states({2: report(2, kadril=1.2), 4: report(4)}, IDLE)
    missed = {text for text, state in found.items() if state == "missed"}
    assert missed == {"2 ranks, 64 MiB: kadril at least 0.8x copy"}


def test_unpinned_ranks_do_not_reach_the_bars_of_pinned_ones() -> None:
    key = Key("allreduce", 64 << 20, "unpinned", "kadril")
    series = {key: [[1e-3]], key._replace(engine="gloo"): [[9e-3]]}
    found = states({2: make_report(series)}, None)
    assert set(found.values()) == {"not measured"}


def test_what_was_not_measured_is_not_reached() -> None:
    found = states({2: report(2)}, None)
    assert sum(state == "not measured" for state in found.values()) == 5 * 3 + 1


def test_a_world_that_spins_is_not_idle() -> None:
    (last,) = [s for t, s in states({}, Idleness(1.0, 10.0)).items() if "idle" in t]
    assert last == "missed"


def test_results_are_written_and_read_again(tmp_path: Path) -> None:
    check_bars, run = load("check_bars"), load("run")
    found = check_bars.Found({2: report(2), 4: report(4)}, IDLE)
    bars = list(check_bars.check_bars(found))
    path = run.write_results(tmp_path / "results", found, bars)
    again = check_bars.read_results(path)
    assert again.idle == IDLE
    assert list(check_bars.check_bars(again)) == bars
    page = path.with_suffix(".md").read_text()
    assert "| 2 ranks, 64 MiB: kadril at least 4x gloo |" in page
    assert page.count("## allreduce") == 4
    assert check_files([str(path)], check_bars.check_bars, check_bars.read_results) == 0


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_bars, run = load("check_bars"), load("run")
    path = run.write_results(tmp_path, check_bars.Found({2: report(2)}, IDLE), [])
    assert check_files([str(path)], check_bars.check_bars, check_bars.read_results) == 1
    assert "10 of 25 bars reached" in capsys.readouterr().out
    assert check_files([], check_bars.check_bars, check_bars.read_results) == 2
