"""A program that the launcher runs and watches: signals reach it once, and its end is passed on.

The program counts the signals that it gets, which no mpirun tells.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

LAUNCHER = """
import os, sys
from kadril.launch.local.watched_program import run_watched
sys.exit(run_watched([sys.executable, "-c", sys.argv[1]], os.environ))
"""

# Ends with code 7 when its stdin does.
COUNTER = """
import os, signal, sys
def note(signum, _):
    os.write(1, b"got %d\\n" % signum)
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(signum, note)
os.write(1, b"ready in group %d\\n" % os.getpgrp())
while os.read(0, 1):
    pass
sys.exit(7)
"""

PASSED_ON = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


def command(program: str) -> list[str]:
    return [sys.executable, "-c", LAUNCHER, program]


def start(program: str = COUNTER, ignored: signal.Signals | None = None) -> subprocess.Popen[bytes]:
    """Start a launcher as no terminal does: it leads a session."""

    def prepare() -> None:
        for signum in PASSED_ON:  # a session of tests may have been started with some ignored
            signal.signal(signum, signal.SIG_IGN if signum == ignored else signal.SIG_DFL)

    return subprocess.Popen(
        command(program),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509 - one thread here
    )


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[bytes]]:
    with start() as process:
        await_ready(process)
        yield process
        process.kill()


def await_ready(launcher: subprocess.Popen[bytes]) -> None:
    """Wait for the program, which leads a group: what is sent to the launcher's must not reach it.

    Two equal signals at nearly the same time may be one to who gets them, so counting is no proof.
    """
    assert launcher.stdout is not None
    line = launcher.stdout.readline()
    assert line.startswith(b"ready in group ")
    assert int(line.split()[-1]) != launcher.pid


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Have the program end, and return the code of the launcher and what was still printed."""
    out, _ = process.communicate(timeout=20)
    return process.returncode, out


@pytest.mark.parametrize("to_group", [False, True])
def test_each_signal_reaches_the_program_once(
    launcher: subprocess.Popen[bytes], to_group: bool
) -> None:
    assert launcher.stdout is not None
    for signum in (*PASSED_ON, signal.SIGINT):
        (os.killpg if to_group else os.kill)(launcher.pid, signum)
        assert launcher.stdout.readline() == b"got %d\n" % signum
    assert finish(launcher) == (7, b"")


def test_what_nohup_ignores_stays_ignored() -> None:
    with start(ignored=signal.SIGHUP) as launcher:
        assert launcher.stdout is not None
        await_ready(launcher)
        launcher.send_signal(signal.SIGHUP)
        launcher.send_signal(signal.SIGUSR1)
        assert launcher.stdout.readline() == b"got %d\n" % signal.SIGUSR1
        assert finish(launcher) == (7, b"")


def test_the_program_hears_of_the_end_of_a_launcher_that_is_killed(
    launcher: subprocess.Popen[bytes],
) -> None:
    assert launcher.stdout is not None
    launcher.kill()
    assert launcher.stdout.readline() == b"got %d\n" % signal.SIGTERM
    assert finish(launcher) == (-signal.SIGKILL, b"")


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
        ("import os; os.kill(os.getpid(), 15)", 128 + 15),
    ],
)
def test_exit_codes(program: str, code: int) -> None:
    with start(program) as launcher:
        assert finish(launcher)[0] == code


def read_until(terminal: int, text: bytes) -> bytes:
    """Read from a terminal until a text has come."""
    read = b""
    while text not in read:
        read += os.read(terminal, 1024)
    return read


def test_ctrl_c_in_a_terminal_reaches_the_program_once() -> None:
    """The terminal sends it to the launcher and to the program: it must not be passed on, too."""
    pid, terminal = pty.fork()
    if pid == 0:
        for signum in PASSED_ON:
            signal.signal(signum, signal.SIG_DFL)
        os.execv(sys.executable, command(COUNTER))  # noqa: S606
    try:
        read = read_until(terminal, b"ready in group %d\r\n" % pid)
        for _ in range(2):
            # Held back, so that what it may pass on comes after what the terminal has sent.
            os.kill(pid, signal.SIGSTOP)
            os.write(terminal, b"\x03")
            read += read_until(terminal, b"got 2\r\n")
            os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)  # of the launcher alone
        read += read_until(terminal, b"got 15\r\n")
        os.write(terminal, b"\x04")  # the end of stdin, which is the program's too
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert read.count(b"got 2\r\n") == 2
        assert read.count(b"got 15\r\n") == 1
    finally:
        os.close(terminal)
