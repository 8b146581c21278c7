"""`kadril bench` for real: jobs of kadril and gloo, and of MPI where it is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_playground import Launched, Playground, Result, eventually

from kadril.bench.figures import Result as Figure
from kadril.bench.peers import PeerMissing, find_start
from kadril.bench.report import Report

SMALL = ("--sizes", "4,64K", "--rounds", "2", "--seconds", "0.01")


def start(playground: Playground, *words: str, **variables: str) -> Launched:
    process = subprocess.Popen(
        [sys.executable, "-m", "kadril", "bench", *words],
        env=playground.environment(variables),
        cwd=playground.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    playground.launched.append(Launched(process))
    return playground.launched[-1]


def bench(playground: Playground, *words: str, **variables: str) -> Result:
    return start(playground, *words, **variables).finish(timeout=110)


@pytest.fixture(scope="module")
def shared_playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    runtime = Path(tempfile.mkdtemp(prefix="kb-", dir="/tmp"))
    made = Playground(tmp_path_factory.mktemp("bench"), runtime)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def run(shared_playground: Playground) -> tuple[Result, Report]:
    """One run of two collectives beside gloo; loading torch four times is slow enough."""
    result = bench(
        shared_playground,
        *("--collectives", "allreduce,barrier", "--peers", "gloo"),
        *("--json", "out.json", *SMALL),
    )
    assert result.code == 0, result.err.decode()
    text = (shared_playground.directory / "out.json").read_text()
    return result, Report.from_json(text)


def figures(report: Report) -> dict[tuple[str, int, str, str], Figure]:
    return {tuple(result.key): result for result in report.results}  # type: ignore[misc]


def test_everything_was_measured_in_both_settings(run: tuple[Result, Report]) -> None:
    expected = {
        (collective, size, setting, engine)
        for setting in ("pinned", "unpinned")
        for collective, sizes, engines in (
            ("allreduce", (4, 65536), ("kadril", "zero-copy", "copy", "gloo")),
            ("barrier", (0,), ("kadril", "gloo")),
        )
        for size in sizes
        for engine in engines
    }
    found = figures(run[1])
    assert set(found) == expected
    for result in found.values():
        assert 0 < result.p10 <= result.p50 <= result.p90 <= result.p99
        assert len(result.rounds) == 2
        assert result.num_samples == sum(one.num_samples for one in result.rounds)
        assert result.touch == (result.num_bytes == 65536)


def test_figures_are_of_this_world(run: tuple[Result, Report]) -> None:
    # gloo goes through the kernel's sockets for each call: it cannot take less than a microsecond,
    # nor can shared memory take longer than it.
    found = figures(run[1])
    for setting in ("pinned", "unpinned"):
        gloo = found["allreduce", 4, setting, "gloo"]
        assert 1e-6 < gloo.p10 < 1
    one = found["allreduce", 65536, "pinned", "kadril"]
    assert one.algbw == pytest.approx(65536 / one.p50 / 1e9, rel=1e-3)
    assert one.busbw == pytest.approx(one.algbw, rel=1e-3)


def test_ranks_whose_turn_it_is_not_use_no_processor(run: tuple[Result, Report]) -> None:
    idle = run[1].idle
    assert set(idle) == {"kadril", "gloo"}
    for job in idle.values():
        assert job.wall > 0.2
        assert job.share < 0.05


def test_the_report_can_be_believed(run: tuple[Result, Report]) -> None:
    report = run[1]
    assert report.command.startswith("kadril bench --collectives allreduce,barrier")
    assert report.machine["cpu"]
    assert report.machine["cores"]
    assert set(report.load) == {"begin", "end"}
    assert {"python", "kadril", "torch", "numpy", "engine gloo"} <= set(report.versions)
    assert report.options["num_rounds"] == 2


def test_the_table_is_printed(run: tuple[Result, Report]) -> None:
    text = run[0].out.decode()
    assert "allreduce, 2 ranks, float32: time of a call, p50 (p99)" in text
    assert "64 KiB" in text
    assert "vs gloo" in text
    assert "load " in text


@pytest.mark.long  # `run` has two of them every day
def test_every_collective_gives_right_results(playground: Playground) -> None:
    # The check before the first measurement raises in the job where a result is wrong. Three
    # ranks, since with two the next rank is the one before.
    result = bench(
        playground,
        *("-np", "3", "--peers", "gloo", "--sizes", "4,256K", "--rounds", "1"),
        *("--seconds", "0.001", "--no-pinned", "--json", "out.json"),
    )
    assert result.code == 0, result.err.decode()
    report = Report.from_json((playground.directory / "out.json").read_text())
    assert report.missing == {}
    assert len(report.results) == 7 * 2 * 4 + 2


@pytest.mark.long  # where an MPI is, and how it is started, `tests/unit` knows
@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_mpi(playground: Playground, flavour: str, request: pytest.FixtureRequest) -> None:
    try:
        find_start(flavour, 2)
    except PeerMissing as error:
        if request.config.getoption("--require-mpi", default=False):
            pytest.fail(f"--require-mpi: {error}", pytrace=False)
        pytest.skip(str(error))
    result = bench(
        playground,
        *("--peers", flavour, "--rounds", "1", "--seconds", "0.001", "--sizes", "4,64K"),
        *("--no-unpinned", "--json", "out.json"),
        **{name: os.environ[name] for name in os.environ if name.startswith("KADRIL_BENCH_")},
    )
    assert result.code == 0, result.err.decode()
    report = Report.from_json((playground.directory / "out.json").read_text())
    assert report.missing == {}
    assert {result.collective for result in report.results if result.engine == flavour} == set(
        report.options["collectives"]
    )
    assert report.idle[flavour].share < 0.05, "an idle MPI rank that spins disturbs the others"


def test_a_peer_that_was_asked_for_and_is_not_there(playground: Playground) -> None:
    result = bench(playground, "--peers", "mpich", KADRIL_BENCH_MPICH="/nowhere/mpirun")
    assert result.code == 1
    assert b"MPICH: no mpirun of it at /nowhere/mpirun" in result.err
    assert result.out == b""


def is_rank(command: str) -> bool:
    return "-m kadril.bench.rank" in command and " run " not in command


@pytest.mark.parametrize(
    ("signum", "code"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
    ],
)
def test_nothing_is_left_when_the_driver_is_ended(
    playground: Playground, signum: int, code: int
) -> None:
    launched = start(playground, "--peers", "", "--sizes", "1M")
    assert eventually(
        lambda: sum(is_rank(command) for command in playground.processes().values()) == 2, 60
    )
    launched.send(signum)
    assert launched.finish(timeout=60).code == code
    assert eventually(lambda: not playground.litter(), 20), playground.litter()


def test_json_is_plain_json(run: tuple[Result, Report], shared_playground: Playground) -> None:
    fields = json.loads((shared_playground.directory / "out.json").read_text())
    assert fields["format"] == 1
    assert all(isinstance(result["p50"], float) for result in fields["results"])
