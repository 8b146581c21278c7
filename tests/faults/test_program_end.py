"""F44, F45: a flood of output, and programs that end with calls under way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXIT_SECONDS = 2.0

# Rank 0 has a pipe open, which its end closes.
PENDING = """
import os, sys, threading, time
import numpy as np
import kadril

world = kadril.init()
world.transport.barrier()
if world.rank == 1:
    time.sleep(60)  # never comes to the call; the launcher ends it
alive = os.open(sys.argv[2], os.O_WRONLY)
waiter = threading.Thread(target=world.transport.allreduce, args=(np.ones(4),), daemon=True)
waiter.start()
os.write(alive, b"%r" % time.monotonic())
if sys.argv[1] == "_exit":
    os._exit(3)
sys.exit(3)
"""


def seconds_to_end(pipe: Path) -> float:
    """Return how long a process has lived after the time that it has written into a pipe."""
    with pipe.open("rb", buffering=0) as reader:  # when it has been opened by the other, too
        left = float(reader.read(64))
        assert reader.read(1) == b""
        return time.monotonic() - left


@pytest.mark.parametrize("way", ["exit", pytest.param("_exit", marks=pytest.mark.long)])
def test_a_program_ends_while_its_thread_waits(way: str, tmp_path: Path) -> None:
    """F45: nobody's patience is waited out. It once ended with an abort of the interpreter."""
    program = tmp_path / "pending.py"
    program.write_text(PENDING)
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    words = ["-np", "2", "--no-prefix", "--kill-grace", "1", str(program), way, str(pipe)]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "kadril", "run", *words],
        env={**os.environ, "KADRIL_PATIENCE": "60"},
        stderr=subprocess.PIPE,
        text=True,
    )
    with launcher:
        took = seconds_to_end(pipe)
        _, said = launcher.communicate(timeout=60)
    assert launcher.returncode == 3, said
    assert took < EXIT_SECONDS
    # What the thread was told, and the launcher's repetition of it; no wall of warnings.
    assert said.count("Exception in thread") <= 2, said
    assert "Fatal Python error" not in said
    assert "terminate called" not in said


FLOOD = """
import os
rank = os.environ["KADRIL_RANK"]
text = "".join(f"{rank} {number}\\n" for number in range(1_000_000)).encode()
while text:
    text = text[os.write(1, text[:1 << 20]):]
"""


@pytest.mark.faults
def test_a_million_lines_of_each_rank(tmp_path: Path) -> None:
    """F44: no deadlock, and each rank's lines are whole and in order."""
    program = tmp_path / "flood.py"
    program.write_text(FLOOD)
    command = [sys.executable, "-m", "kadril", "run", "-np", "2", "--no-prefix", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    numbers: dict[str, list[int]] = {"0": [], "1": []}
    for line in done.stdout.splitlines():
        rank, number = line.split()
        numbers[rank].append(int(number))
    assert all(each == list(range(1_000_000)) for each in numbers.values())
