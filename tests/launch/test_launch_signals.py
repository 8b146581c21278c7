"""Signals to the launcher reach every rank once, and the end comes in time (F18)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch_playground import Playground, eventually

# Counts signals until SIGUSR2, then tells and leaves with exit code 0.
COUNTER = """
    import os, signal, sys
    counts = {}
    def count(signum, frame):
        name = signal.Signals(signum).name
        counts[name] = counts.get(name, 0) + 1
        os.write(1, f"got {name} {counts[name]}\\n".encode())
    for name in sys.argv[1:]:
        signal.signal(signal.Signals[name], count)
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
    os.write(1, b"ready\\n")
    while True:
        signal.pause()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_forwarded_once_to_every_rank(playground: Playground, name: str) -> None:
    script = playground.write("counter.py", COUNTER)
    launched = playground.start("-np", "3", script, name)
    launched.await_output(rb"ready\n", 3)
    launched.send(signal.Signals[name])
    launched.await_output(rb"got \w+ 1\n", 3)
    launched.send(signal.SIGUSR2)
    result = launched.finish()
    assert result.out.count(b"got ") == 3
    codes = {"SIGINT": 130, "SIGTERM": 143}
    assert result.code == codes.get(name, 0)


def test_reaches_children_of_a_rank(playground: Playground) -> None:
    script = playground.write("counter.py", COUNTER)
    shell = (
        f"{sys.executable} {script} SIGUSR1 & trap '' USR1; trap 'wait; exit 0' USR2; wait; wait"
    )
    launched = playground.start("-np", "2", "bash", "-c", shell)
    launched.await_output(rb"ready\n", 2)
    launched.send(signal.SIGUSR1)
    launched.await_output(rb"got SIGUSR1 1\n", 2)
    launched.send(signal.SIGUSR2)
    assert launched.finish().code == 0


def test_ctrl_c_at_a_terminal_is_not_doubled(playground: Playground) -> None:
    # The terminal signals its whole foreground group; ranks in it would get Ctrl-C twice.
    script = playground.write("counter.py", COUNTER)
    program = f"""
        import pty, sys
        command = [sys.executable, "-m", "kadril", "run", "-np", "2", {script!r}, "SIGINT"]
        sys.exit(pty.spawn(command) >> 8)
    """
    read_end, keyboard = os.pipe()
    terminal = subprocess.Popen(
        [sys.executable, playground.write("terminal.py", program)],
        env=playground.environment(),
        stdin=read_end,
        stdout=subprocess.PIPE,
    )
    os.close(read_end)
    try:
        assert terminal.stdout is not None
        screen = b""
        while screen.count(b"ready") < 2:
            screen += os.read(terminal.stdout.fileno(), 4096)
        os.write(keyboard, b"\x03")
        while screen.count(b"got SIGINT 1") < 2:
            screen += os.read(terminal.stdout.fileno(), 4096)
        for pid, command in playground.processes().items():
            if "counter.py SIGINT" in command and "kadril run" not in command:
                os.kill(pid, signal.SIGUSR2)
        rest, _ = terminal.communicate(timeout=20)
        assert (screen + rest).count(b"got SIGINT") == 2
        assert terminal.returncode == 130
    finally:
        os.close(keyboard)
        terminal.kill()
        terminal.wait()


def test_interrupted_python_programs_end_with_130(playground: Playground) -> None:
    program = "import time; print('ready'); time.sleep(1000)"
    launched = playground.start("-np", "2", sys.executable, "-c", program)
    launched.await_output(rb"ready\n", 2)
    launched.send(signal.SIGINT)
    result = launched.finish()
    assert result.code == 130
    assert result.err.count(b"KeyboardInterrupt") == 2
    assert result.report == ["interrupted by SIGINT"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_ranks_that_do_not_leave_are_killed_after_the_grace(
    playground: Playground, name: str
) -> None:
    script = playground.write("counter.py", COUNTER)
    launched = playground.start("-np", "2", "--grace", "0.4", script, name)
    launched.await_output(rb"ready\n", 2)
    start = time.monotonic()
    launched.send(signal.Signals[name])
    result = launched.finish()
    assert 0.4 <= time.monotonic() - start < 3.0
    assert result.code == 128 + signal.Signals[name]
    assert result.report == [
        f"interrupted by {name}",
        "rank 0: stopped by the launcher (SIGKILL)",
        "rank 1: stopped by the launcher (SIGKILL)",
    ]


def test_second_ctrl_c_kills_at_once(playground: Playground) -> None:
    script = playground.write("counter.py", COUNTER)
    launched = playground.start("-np", "2", "--grace", "1000", script, "SIGINT")
    launched.await_output(rb"ready\n", 2)
    launched.send(signal.SIGINT)
    launched.await_output(rb"got SIGINT 1\n", 2)
    # The user presses again until it works; within a tenth of a second it counts as the same press.
    deadline = time.monotonic() + 5.0
    while launched.process.poll() is None and time.monotonic() < deadline:
        launched.send(signal.SIGINT)
        time.sleep(0.15)
    result = launched.finish()
    assert result.code == 130
    assert result.out.count(b"got SIGINT 2") == 0


def is_pending(pid: int, signum: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [
        line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))
    ]
    return any(int(mask, 16) >> (signum - 1) & 1 for mask in masks)


def test_ctrl_c_passed_on_by_a_wrapper_is_one_ctrl_c(playground: Playground) -> None:
    # `timeout`, `uv run` and others pass on what the terminal has already delivered.
    script = playground.write("counter.py", COUNTER)
    launched = playground.start("-np", "1", script, "SIGINT")
    launched.await_output(rb"ready\n")
    start = time.monotonic()
    launched.send(signal.SIGINT)
    while is_pending(launched.pid, signal.SIGINT):
        pass
    launched.send(signal.SIGINT)
    if time.monotonic() - start > 0.05:
        pytest.skip("this machine is too busy to press Ctrl-C twice in a twentieth of a second")
    launched.await_output(rb"got SIGINT 1\n")
    launched.send(signal.SIGUSR2)
    result = launched.finish()
    assert result.code == 130
    assert result.out.count(b"got SIGINT") == 1
    assert result.report == ["interrupted by SIGINT"]  # and nobody was killed


def test_ctrl_c_while_a_failed_job_is_stopped_kills_at_once(playground: Playground) -> None:
    program = """
        import os, signal, sys
        from pathlib import Path
        if os.environ["KADRIL_RANK"] == "1":
            while not Path("ready").exists():
                pass
            sys.exit(9)
        signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"told to stop\\n"))
        Path("ready").touch()
        while True:
            signal.pause()
    """
    script = playground.write("stubborn.py", program)
    launched = playground.start("-np", "2", "--kill-grace", "1000", script)
    launched.await_output(rb"told to stop\n")
    launched.send(signal.SIGINT)
    result = launched.finish()
    assert result.code == 9  # the failure came first
    assert "rank 0: stopped by the launcher (SIGKILL)" in result.report


def test_signal_without_a_handler_ends_the_ranks_and_is_named(playground: Playground) -> None:
    launched = playground.start("-np", "2", "sh", "-c", "echo ready; exec sleep 1000")
    launched.await_output(rb"ready\n", 2)
    assert eventually(lambda: sum("sleep 1000" in c for c in playground.processes().values()) == 3)
    launched.send(signal.SIGUSR1)
    result = launched.finish()
    assert result.code == 128 + signal.SIGUSR1
    assert "killed by signal 10 (SIGUSR1)" in result.report[0]
    assert result.report[1] == "the launcher was sent that signal and passed it on"


def test_nohup_is_honoured(playground: Playground) -> None:
    script = playground.write("counter.py", COUNTER)
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        launched = playground.start("-np", "1", script, "SIGUSR1")
    finally:
        signal.signal(signal.SIGHUP, old)
    launched.await_output(rb"ready\n")
    launched.send(signal.SIGHUP)
    launched.send(signal.SIGUSR1)
    launched.await_output(rb"got SIGUSR1 1\n")
    launched.send(signal.SIGUSR2)
    assert launched.finish().code == 0


def test_children_are_seen_although_the_parent_ignored_theirs(playground: Playground) -> None:
    # With SIGCHLD ignored the kernel reaps children at once and their exit codes are lost.
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        launched = playground.start("-np", "2", "sh", "-c", "exit 3")
    finally:
        signal.signal(signal.SIGCHLD, old)
    assert launched.finish().code == 3
