"""F38: the wall clock may jump, and a machine may sleep: no timeout follows either.

Namespaces of time do not have a wall clock of their own, and a test must not set the machine's: so
the sources are read, and a sleep of the machine is played by a stop of all ranks at once.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
import torch

import kadril
from kadril.testing import Ranks, faults
from kadril.world import World

SOURCES = Path(kadril.__file__).parent
NATIVE = Path(__file__).parents[2] / "native"

# Where the wall clock is right, since people or other programs read it: nothing waits for it.
FOR_PEOPLE = {
    "bench/report.py": "the date of a report",
    "transport/tiers/tier_tuning.py": "the age of a file of measurements",
    "shared_engine/elastic/state.py": "the timestamp that Horovod's callback is given",
}
NATIVE_FOR_PEOPLE = {"engine/timeline.cc": "when a timeline began, for the one who reads it"}
WALL = re.compile(r"\btime\.time(_ns)?\b|\bdate(time)?\.(now|utcnow|today)\b|CLOCK_REALTIME")


def test_no_timeout_follows_the_wall_clock() -> None:
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if WALL.search(path.read_text())
    }
    assert found <= set(FOR_PEOPLE), f"use time.monotonic(), or say why not: {found}"


def test_no_timeout_of_the_core_follows_the_wall_clock() -> None:
    wall = re.compile(r"system_clock|CLOCK_REALTIME|gettimeofday|\btime\(nullptr\)")
    found = {
        path.relative_to(NATIVE).as_posix()
        for path in (*NATIVE.rglob("*.cc"), *NATIVE.rglob("*.h"))
        if "tests" not in path.parts and wall.search(path.read_text())
    }
    assert found <= set(NATIVE_FOR_PEOPLE), found


def meet_again(world: World) -> float:
    x = torch.ones(300_000)
    world.transport.allreduce(x)
    faults.gate("asleep")
    world.transport.allreduce(x)
    return float(x.max())


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_machine_that_slept(transport: str) -> None:
    """All ranks stop for longer than a dead link may be silent, and go on as if nothing was."""
    with Ranks(2, transport=transport, link_timeout=1.0, patience=60.0) as ranks:
        ranks.start(meet_again).wait_mark("asleep")
        ranks.open_gate("asleep")
        for rank in range(2):
            ranks.signal(rank, signal.SIGSTOP)
        time.sleep(1.2)  # as long as the sleep is to take; nothing waits for it to be long enough
        for rank in range(2):
            ranks.signal(rank, signal.SIGCONT)
        assert [outcome.value for outcome in ranks.wait(30.0)] == [4.0, 4.0]
