"""F44, F45: a flood of output, and programs that end with calls under way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXIT_SECONDS = 2.0
START_SECONDS = 8.0  # that starting the interpreters may take on a busy machine

PENDING = """
import os, sys, threading, time
import numpy as np
import kadril

world = kadril.init()
world.transport.barrier()
if world.rank == 1:
    time.sleep(60)  # never comes to the call; the launcher ends it
waiter = threading.Thread(target=world.transport.allreduce, args=(np.ones(4),), daemon=True)
waiter.start()
print("leaving", time.monotonic(), flush=True)
if sys.argv[1] == "_exit":
    os._exit(3)
sys.exit(3)
"""


@pytest.mark.parametrize("way", ["exit", pytest.param("_exit", marks=pytest.mark.long)])
def test_a_program_ends_while_its_thread_waits(way: str, tmp_path: Path) -> None:
    """F45: nobody's patience is waited out. It once ended with an abort of the interpreter."""
    program = tmp_path / "pending.py"
    program.write_text(PENDING)
    words = ["-np", "2", "--no-prefix", "--kill-grace", "1", str(program), way]
    done = subprocess.run(
        [sys.executable, "-m", "kadril", "run", *words],
        env={**os.environ, "KADRIL_PATIENCE": "60"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    ended = time.monotonic()
    left = float(done.stdout.split()[1])
    assert done.returncode == 3, done.stderr
    assert ended - left < EXIT_SECONDS + START_SECONDS
    # What the thread was told, and the launcher's repetition of it; no wall of warnings.
    assert done.stderr.count("Exception in thread") <= 2, done.stderr
    assert "Fatal Python error" not in done.stderr
    assert "terminate called" not in done.stderr


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
