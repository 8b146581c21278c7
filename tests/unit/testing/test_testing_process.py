"""Looking at processes from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kadril.testing.process import ask_for_stacks, describe_exit, read_tail, state_of

SLEEPER = """if True:
    import faulthandler, signal, sys, time
    faulthandler.register(signal.SIGUSR2, file=open(sys.argv[1], 'w'), all_threads=True)
    def deep_inside():
        print('ready', flush=True)
        time.sleep(60)
    deep_inside()
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", SLEEPER, os.fspath(tmp_path / "stacks")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def test_a_process_tells_where_it_is(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    for _ in range(2):  # what it wrote before is not told again
        stacks = ask_for_stacks(sleeper.pid, tmp_path / "stacks", signal.SIGUSR2)
        assert stacks.count("in deep_inside") == 1


def test_the_states_of_a_process(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert state_of(os.getpid()) == "running"
    assert state_of(sleeper.pid) in ("running", "sleeping")
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert state_of(sleeper.pid) == "stopped"
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert state_of(sleeper.pid) == "dead"  # also before anybody has reaped it
    sleeper.wait()
    assert state_of(sleeper.pid) == "dead"
    assert ask_for_stacks(sleeper.pid, tmp_path / "stacks", signal.SIGUSR2) == ""


def test_exits_in_words() -> None:
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert describe_exit(-99) == "was killed by signal 99"


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "output"
    assert read_tail(path) == ""
    path.write_bytes(b"x" * 100_000 + b"\xffend")
    assert len(read_tail(path)) == 64 * 1024
    assert read_tail(path).endswith("x\ufffdend")
    assert read_tail(path, start=100_001) == "end"
