"""What holds for the whole suite: a session leaves nothing behind, and says what took long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from kadril.testing import no_leaks, shutdown
from kadril.testing.mpi_worker_pool import OPENMPI_DIRECTORY
from kadril.testing.rendezvous import make_directory, remove_directory


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
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
        patch.setattr("tempfile.tempdir", str(directory))
        with no_leaks(threads=False, settle=5.0):
            yield
            shutdown()
    remove_directory(directory)
    remove_directory(memory)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--slowest`."""
    text = "print so many of the slowest tests, and how long all of them took, by folder"
    parser.addoption("--slowest", type=int, default=0, metavar="N", help=text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print where the time went: a suite stays quick only if somebody looks."""
    num_shown = terminalreporter.config.getoption("--slowest")
    tests: dict[str, float] = defaultdict(float)
    folders: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):  # of a set-up, a call or a tear-down
                tests[report.nodeid] += report.duration
                folders[str(Path(report.nodeid.partition("::")[0]).parent)] += report.duration
    if num_shown and tests:
        title = f"slowest {num_shown} of {len(tests)} tests, which took {sum(tests.values()):.0f} s"
        terminalreporter.section(title)
        for name in sorted(tests, key=tests.__getitem__, reverse=True)[:num_shown]:
            terminalreporter.line(f"{tests[name]:6.1f} s  {name}")
        ordered = sorted(folders, key=folders.__getitem__, reverse=True)
        sums = ", ".join(f"{name} {folders[name]:.0f} s" for name in ordered)
        terminalreporter.line(f"by folder: {sums}")
