"""The pytest plugin, seen as its user sees it: a session of its own, and what it prints.

One session runs all cases, since it has to import torch; the tests below look at its parts.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CASES = """
    import os
    import threading

    import pytest
    from helper_next_to_tests import ANSWER
    from kadril.testing import ranks

    @ranks(1, 2, transports=("shm", "c10d"))
    @pytest.mark.parametrize("letter", ["a", "b"])
    def test_matrix(world, letter):
        assert letter in "ab"

    @ranks(2)
    def test_helper(world):
        assert ANSWER == 42

    @ranks(2)
    def test_fails_alike(world):
        print(f"rank {world.rank} speaking")
        values = [1, 2]
        assert len(values) == 3

    @ranks(2)
    def test_skips(world):
        pytest.skip("because")

    @pytest.mark.xfail(strict=True)
    @ranks(2)
    def test_fails_as_expected(world):
        assert False

    @ranks(2)
    def test_unpicklable(world, lock):
        pass

    @pytest.fixture
    def lock():
        return threading.Lock()

    def test_without_ranks(world):
        pass

    @ranks(2, transports=("mpi:mpich",))
    def test_mpi(world):
        pass

    @ranks(1)
    def test_leaves_nothing_open(world, no_leaks):
        pass
"""


@dataclasses.dataclass
class Session:
    code: int
    text: str
    outcomes: dict[str, str]

    def part(self, name: str) -> str:
        """Return what was printed about one failed test."""
        match = re.search(rf"^_+ {re.escape(name)} _+\n(.*?)^[_=]{{3,}}", self.text, re.M | re.S)
        assert match, self.text
        return match[1]


def run_session(directory: Path, request: pytest.FixtureRequest, *options: str) -> Session:
    """Run pytest in a process of its own, with the kit as it is loaded in this one."""
    installed = request.config.pluginmanager.hasplugin("kadril")
    plugin = [] if installed else ["-p", "kadril.testing.plugin"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "KADRIL_TESTING_MPICH": os.fspath(directory / "no" / "mpirun"),
    }
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "-rA", *options, "."],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    words = r"^(PASSED|FAILED|ERROR|XFAIL) \S+?::(\S+)"
    outcomes = {name: word for word, name in re.findall(words, result.stdout, re.M)}
    return Session(result.returncode, result.stdout + result.stderr, outcomes)


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    directory = tmp_path_factory.mktemp("project")
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_cases.py").write_text(textwrap.dedent(CASES))
    (directory / "helper_next_to_tests.py").write_text("ANSWER = 42\n")
    return run_session(directory, request)


def test_there_is_one_test_for_each_size_transport_and_parameter(session: Session) -> None:
    names = {
        f"test_matrix[{size}-{transport}-{letter}]"
        for size in (1, 2)
        for transport in ("shm", "c10d")
        for letter in "ab"
    }
    assert names == {name for name in session.outcomes if name.startswith("test_matrix")}
    assert {session.outcomes[name] for name in names} == {"PASSED"}


def test_helpers_next_to_the_tests_import(session: Session) -> None:
    assert session.outcomes["test_helper[2-shm]"] == "PASSED"


def test_a_failure_shows_ranks_operands_and_output(session: Session) -> None:
    part = session.part("test_fails_alike[2-shm]")
    assert part.startswith("ranks 0, 1: AssertionError: assert 2 == 3\n")
    assert part.count("in test_fails_alike") == 1
    assert "where 2 = len([1, 2])" in part
    for rank in (0, 1):
        assert f"Captured output of rank {rank} call" in part
        assert f"rank {rank} speaking" in part
    assert "pool.py" not in part
    assert "FAILED test_cases.py::test_fails_alike[2-shm] - Failed: ranks 0, 1:" in session.text


def test_skip_and_xfail_mean_what_they_mean_elsewhere(session: Session) -> None:
    assert re.search(r"SKIPPED \[1\] .*: because", session.text)
    assert session.outcomes["test_fails_as_expected[2-shm]"] == "XFAIL"


def test_what_cannot_be_sent_is_named(session: Session) -> None:
    part = session.part("test_unpicklable[2-shm]")
    assert part.startswith("argument 'lock' of type lock cannot be sent to the ranks")


def test_a_world_without_ranks_is_explained(session: Session) -> None:
    assert session.outcomes["test_without_ranks"] == "ERROR"
    assert "gets its `world` from @kadril.testing.ranks(...), which is missing" in session.text


def test_a_missing_mpi_is_a_skip_with_the_reason(session: Session) -> None:
    assert re.search(r"SKIPPED \[1\] .*: no mpirun of mpich at .*/no/mpirun", session.text)


def test_ranks_are_no_leak_of_the_test_that_started_them(session: Session) -> None:
    assert session.outcomes["test_leaves_nothing_open[1-shm]"] == "PASSED"


def test_the_session_ends_with_the_count_of_its_tests(session: Session) -> None:
    assert session.code == 1
    # Where kadril is installed editable, pytest warns that it cannot rewrite the finder of that.
    counts = r"= 2 failed, 10 passed, 2 skipped, 1 xfailed,(?: 1 warning,)? 1 error in"
    assert re.search(counts, session.text), session.text


@pytest.mark.parametrize("how", ["option", "ini"])
def test_a_missing_mpi_is_an_error_where_it_is_required(
    tmp_path: Path, request: pytest.FixtureRequest, how: str
) -> None:
    ini = "require_mpi = true\n" if how == "ini" else ""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{ini}")
    (tmp_path / "test_mpi.py").write_text(
        "from kadril.testing import ranks\n"
        '@ranks(2, transports=("mpi:mpich",))\n'
        "def test_mpi(world): ...\n"
    )
    session = run_session(tmp_path, request, *(["--require-mpi"] if how == "option" else []))
    assert session.outcomes == {"test_mpi[2-mpi:mpich]": "ERROR"}
    assert "--require-mpi: no mpirun of mpich at" in session.text
