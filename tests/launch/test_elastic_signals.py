"""Signals to the launcher of an elastic job, whatever its processes do when they come."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from elastic_job import STEPS_BETWEEN_COMMITS, ends, with_script
from launch_playground import Launched, Playground

PROGRAM = Path(__file__).with_name("elastic_program.py")


@pytest.fixture
def notes(playground: Playground) -> Path:
    """Make the directory in which the program keeps notes."""
    directory = playground.directory / "notes"
    directory.mkdir()
    return directory


def start(playground: Playground, notes: Path, flags: str, *faults: str) -> Launched:
    words = [PROGRAM, notes, "12", str(STEPS_BETWEEN_COMMITS), "even", *faults]
    return playground.start(*flags.split(), *words)


def steps_of_callbacks(notes: Path) -> list[str]:
    return [path.read_text() for path in sorted(notes.glob("callback.*"))]


def test_sigusr1_to_the_launcher_has_all_ranks_commit(playground: Playground, notes: Path) -> None:
    job = start(playground, notes, "-np 2 --min-np 2", "launcher-usr1:4:0", "await@callback:8:0")
    result = job.finish(timeout=60.0)
    assert result.code == 0, result.err.decode()
    assert len(ends(result)) == 2
    first, second = steps_of_callbacks(notes)
    assert first == second


def test_sigusr1_ends_nobody_who_does_not_listen_yet(playground: Playground, notes: Path) -> None:
    """Seen once: where one rank had not come to `run`, the spare process and that rank died."""
    flags = "-np 2 --min-np 2 --verbose"
    job = start(playground, notes, flags, "kill:4:1", "hold:-1:1", "await@callback:8:0")
    job.await_output(rb"generation 1: 2 ranks", timeout=60.0)
    job.await_output(rb"worker 1 is process", 2, timeout=60.0)  # the next spare one
    job.send(signal.SIGUSR1)
    (notes / "go").touch()
    result = job.finish(timeout=60.0)
    assert result.code == 0, result.err.decode()
    failed = [line for line in result.report if "failed" in line]
    assert failed == ["rank 1 failed: killed by signal 9 (SIGKILL)"]
    first, second = steps_of_callbacks(notes)
    assert first == second


def test_sigterm_lets_ranks_leave_that_wait_for_slots(playground: Playground, notes: Path) -> None:
    """Seen once: they waited for --grace, and were killed."""
    flags = f"--min-np 3 --max-np 3 --grace 100 {with_script(playground, 3)}"
    job = start(playground, notes, flags, "shrink:4:0", "await:5:4")
    job.await_output(rb"2 of at least 3 ranks \(--min-np\) are left; waiting", timeout=60.0)
    job.send(signal.SIGTERM)
    result = job.finish(timeout=30.0)
    assert result.code == 143
    assert result.report[-1] == "interrupted by SIGTERM"


# Does without elastic.run; below a shell, which has no handler of its own.
HANDLES = """
    import signal, sys, time
    from pathlib import Path
    import kadril

    got = []
    for name in ("SIGUSR1", "SIGUSR2", "SIGHUP"):
        signal.signal(getattr(signal, name), lambda number, _: got.append(number))
    kadril.init()
    print("ready", flush=True)
    while not got:
        time.sleep(0.01)
    print("got", got[0], flush=True)
"""


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_a_signal_reaches_what_a_wrapper_has_started(
    playground: Playground, signum: signal.Signals
) -> None:
    """SIGUSR1 went to the shell alone, which has no handler for it; the others ended the shell."""
    program = playground.write("handles.py", HANDLES)
    script = playground.write("train.sh", f"{sys.executable} {program}; echo ended $?\n")
    job = playground.start("-np", "2", "--min-np", "2", "bash", script)
    job.await_output(rb"ready", 2, timeout=60.0)
    job.send(signum)
    result = job.finish(timeout=60.0)
    assert result.code == 0, result.err.decode()
    assert result.out.count(b"got %d" % signum) == 2
    assert result.out.count(b"ended 0") == 2


def test_a_signal_ends_nobody_who_has_no_handler(playground: Playground, notes: Path) -> None:
    """Spare processes and new ones died of it, and each such end counted as a failed start."""
    job = start(playground, notes, "-np 2 --min-np 2 --verbose", "hold:4:0")
    job.await_output(rb"worker 2 is process", timeout=60.0)
    job.send(signal.SIGUSR2)
    (notes / "go").touch()
    result = job.finish(timeout=60.0)
    assert result.code == 0, result.err.decode()
    assert not [line for line in result.report if "failed" in line]


def test_a_hangup_that_nobody_handles_ends_the_job(playground: Playground, notes: Path) -> None:
    """The terminal is gone. Ranks that died of it were replaced before."""
    job = start(playground, notes, "-np 2 --min-np 2 --verbose", "hold:4:0")
    job.await_output(rb"worker 2 is process", timeout=60.0)
    job.send(signal.SIGHUP)
    result = job.finish(timeout=60.0)
    assert result.code == 129
    assert result.report[-1] == "interrupted by SIGHUP"
    assert not [line for line in result.report if "failed" in line]
