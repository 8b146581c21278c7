"""Rules for the whole suite: a session leaves nothing behind, and says what took long."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest
from fault_times import writer_of_fault_times
from suite_times import SuiteTimes, TimedTest, cpu_of_session

from kadril.testing import Ranks, no_leaks, shutdown
from kadril.testing.mpi_worker_pool import OPENMPI_DIRECTORY
from kadril.testing.rendezvous import make_directory, remove_directory


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[None]:
    """Fail the session that leaves a process, descriptor, segment or file.

    It has a directory for temporary files of its own, so that what other sessions on this machine
    make is not taken for its own. Threads do not count here: those of numpy and torch start when a
    test first imports them.
    """
    tmp_path_factory.getbasetemp()  # made where pytest keeps it for inspection
    directory = make_directory("session")
    memory = make_directory("session", in_memory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(directory))
        # A rank of Open MPI that is killed leaves its segment, elsewhere than in TMPDIR.
        patch.setenv(OPENMPI_DIRECTORY, str(memory))
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        # Mode p of kadril.ddl keeps what it has measured; matplotlib keeps its fonts where it does.
        fonts = os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))
        patch.setenv("MPLCONFIGDIR", fonts)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("tempfile.tempdir", str(directory))
        # Looked at without pytest's capture, which leads stdout elsewhere during a test only.
        uncaptured = pytestconfig.pluginmanager.getplugin(
            "capturemanager"
        ).global_and_fixture_disabled
        check = no_leaks(threads=False, settle=5.0)
        with uncaptured():
            check.__enter__()
        yield
        shutdown()
        with uncaptured():
            check.__exit__(None, None, None)
    remove_directory(directory)
    remove_directory(memory)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--slowest`, `--times`, `--lane` and `--fault-times`."""
    text = "print so many of the slowest tests, and how long all of them took, by folder"
    parser.addoption("--slowest", type=int, default=0, metavar="N", help=text)
    text = "write how long each test took to DIR, for `tests/suite_times.py DIR`"
    parser.addoption("--times", default=None, metavar="DIR", help=text)
    text = "add to FILE how long ranks took from each fault to their error; see fault_times.py"
    parser.addoption("--fault-times", type=Path, default=None, metavar="FILE", help=text)
    text = "share the tests with another session: take files from this end, by claims in DIR"
    parser.addoption("--lane", nargs=2, default=None, metavar=("first|last", "DIR"), help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Have the time from faults to errors written, where that is asked for."""
    if config.getoption("--fault-times"):
        Ranks.observers.append(writer_of_fault_times(config.getoption("--fault-times").resolve()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Take the modules of all tests out of garbage collection: each check for leaks makes one.

    Nor does it run while they are made, of which little is ever freed.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


# ---- two sessions that share the tests: one takes files from the first on, one from the last -----


def unit_of(item: pytest.Item) -> str:
    """Return what one session runs as a whole: a file, or the files that share their worlds."""
    name = item.path.relative_to(Path(__file__).parent).as_posix()
    return re.sub(r"test_conformance_\w+\.py$", "test_conformance", name)


def in_order_of_starts(items: Sequence[pytest.Item]) -> list[str]:
    """Return the units, those that need the same processes next to each other.

    Ranks of an MPI job take seconds of CPU time each to start: the session that begins with the
    first has come through all tests over MPI when it meets the other, which starts none.
    """
    places: dict[str, int] = {}
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        world = parameters.get("world")
        transport = parameters.get("transport") if world is None else world.key.transport
        is_on_ranks = item.path.is_relative_to(Path(__file__).parent / "ranks")
        place = 0 if str(transport).startswith("mpi") else 1 if is_on_ranks else 2
        places[unit_of(item)] = min(place, places.get(unit_of(item), place))
    return sorted(places, key=places.__getitem__)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the last file in the session that takes files from the last on."""
    lane = config.getoption("--lane")
    if lane is not None:
        order = {unit: place for place, unit in enumerate(in_order_of_starts(items))}
        items.sort(key=lambda item: order[unit_of(item)] * (1 if lane[0] == "first" else -1))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Pass over a test that belongs to the other session: it has made a file of that name."""
    lane = item.config.getoption("--lane")
    if lane is None:
        return None
    claim = Path(lane[1], unit_of(item).replace("/", "."))
    with contextlib.suppress(FileExistsError), claim.open("x") as file:
        file.write(lane[0])
    while not (owner := claim.read_text()):
        time.sleep(0.001)  # it was made this moment, and is about to be written
    return None if owner == lane[0] else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the time went: a suite stays quick only if somebody looks."""
    num_shown = terminalreporter.config.getoption("--slowest")
    directory = terminalreporter.config.getoption("--times")
    tests = [
        TimedTest(report.nodeid, report.outcome, report.duration)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)  # of a set-up, a call or a tear-down
    ]
    times = SuiteTimes(tests, cpu_of_session())
    if directory:
        times.write(Path(directory, f"{os.getpid()}.times.json"))
    if num_shown and tests:
        terminalreporter.section("where the time went")
        for line in times.lines(num_shown):
            terminalreporter.line(line)
