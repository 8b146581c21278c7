"""Programs that live side by side and take turns: each setting in processes of its own.

    program     alone    kadril   DDP         round 1    alone    kadril   DDP
    processes   2        2        2           round 2    kadril   DDP      alone

As with settings in the same processes (setting.py), a burst of noise meets all settings of a round.
But what one does to its process, such as the allocator's habits, does nothing to the others: each
runs as it would by itself. Whoever has no turn sleeps.

Between the parent and rank 0 of each program are two pipes in the directory of its answers:

    turns      a byte for each turn, and another one after the last
    done       a byte when it is ready, and after each turn
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.program import ProgramError, RunningProgram
from harness.results import Measured, Series
from harness.setting import Setting, time_turn
from harness.turns import Samples, slowest, take_turns
from kadril.bench.peers import Start
from kadril.world import World

__all__ = [
    "Answers",
    "run_side_by_side",
    "slowest_rounds",
    "take_own_turns",
    "time_workload",
    "wait_for_turns",
]

# What each rank of a program left.
Answers = list[dict[str, Any]]

LOOK_AGAIN = 0.2  # seconds between two looks at whether a program is still there


class WaitingProgram:
    """A program that waits for its turns, as the parent sees it; to be used as a context."""

    def __init__(self, running: RunningProgram) -> None:
        self.running = running
        directory = Path(running.directory)
        # Open for both, so that opening does not wait for the other end.
        self._turns = os.open(directory / "turns", os.O_RDWR)
        self._done = os.open(directory / "done", os.O_RDWR)

    def __enter__(self) -> WaitingProgram:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._turns)
        os.close(self._done)

    def await_done(self, timeout: float) -> bool:
        """Wait until it is ready, or done with a turn; False where it has ended instead.

        Raises:
            ProgramError: that took longer than `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if select.select([self._done], [], [], LOOK_AGAIN)[0]:
                os.read(self._done, 1)
                return True
            if self.running.is_over:
                return False
        raise ProgramError(f"a turn took longer than {timeout:g} s")

    def take_turn(self, timeout: float) -> None:
        """Have it take one turn.

        Raises:
            ProgramError: it has ended, or took longer than `timeout` seconds.
        """
        os.write(self._turns, b"t")
        if not self.await_done(timeout):
            raise ProgramError("a program ended before its last turn")

    def let_go(self) -> None:
        """Tell it that there are no more turns."""
        os.write(self._turns, b"e")


def make_pipes(directory: str) -> None:
    """Make both pipes in the directory of the answers."""
    for name in ("turns", "done"):
        os.mkfifo(Path(directory) / name)


def run_side_by_side(
    program: Path,
    settings: Mapping[str, Sequence[str]],
    *,
    num_ranks: int,
    num_rounds: int,
    timeout: float,
    starts: Mapping[str, Start] | None = None,
) -> dict[str, Answers]:
    """Let all settings of a program take turns; return what their ranks left, by setting.

    A program that ends before its first turn has none; what it left says why.

    Args:
        program: waits for its turns by `wait_for_turns`.
        settings: arguments after the directory, by name.
        num_ranks: of each program.
        num_rounds: how often each has its turn.
        timeout: in seconds, for a start and for a turn.
        starts: how to start the ranks of a setting, where otherwise than those of the others.

    Raises:
        ProgramError: a program failed, or took too long.
    """
    with contextlib.ExitStack() as stack:
        programs: dict[str, WaitingProgram] = {}
        for name, arguments in settings.items():
            running = RunningProgram(
                program,
                arguments,
                num_ranks=num_ranks,
                start=(starts or {}).get(name),
                prepare=make_pipes,
            )
            programs[name] = stack.enter_context(WaitingProgram(stack.enter_context(running)))
        takers = {
            name: partial(waiting.take_turn, timeout)
            for name, waiting in programs.items()
            if waiting.await_done(timeout)
        }
        take_turns(takers, num_rounds)
        for waiting in programs.values():
            waiting.let_go()
        return {name: waiting.running.wait(timeout) for name, waiting in programs.items()}


def time_workload(
    workload: str,
    program: Path,
    settings: Mapping[str, Sequence[str]],
    *,
    num_ranks: int,
    num_rounds: int,
    num_starts: int,
    timeout: float,
    starts: Mapping[str, Start] | None = None,
) -> Measured:
    """Time all settings of a workload in several sets of processes.

    What lies where in a heap is a matter of luck, and stays for as long as a process does. The
    first round of each set is left out: processes have not found their pace by then.

    Args:
        workload: its name.
        program: leaves its `rounds`, or why they are `missing`.
        settings: see `run_side_by_side`, also for the other arguments.
        num_ranks: of each program.
        num_rounds: of all sets of processes together.
        num_starts: how many sets there are.
        timeout: in seconds, for a start and for a turn.
        starts: how to start the ranks of a setting, where otherwise than those of the others.

    Raises:
        ProgramError: a program failed, or took too long.
    """
    print(workload, file=sys.stderr, flush=True)
    timed: Samples = {}
    missing: dict[str, str] = {}
    for number in range(min(num_starts, num_rounds)):
        found = run_side_by_side(
            program,
            settings,
            num_ranks=num_ranks,
            num_rounds=len(range(number, num_rounds, num_starts)) + 1,
            timeout=timeout,
            starts=starts,
        )
        for setting, answers in found.items():
            if "missing" in answers[0]:
                missing[f"{workload}: {setting}"] = answers[0]["missing"]
                continue
            timed.setdefault(setting, []).extend(slowest_rounds(answers)[1:])
    series = [Series(workload, setting, rounds) for setting, rounds in timed.items()]
    return Measured(series, missing=missing)


def slowest_rounds(answers: Answers) -> list[list[float]]:
    """Return the `rounds` of a program, each sample as its slowest rank saw it."""
    return slowest([{"": one["rounds"]} for one in answers])[""]


def take_own_turns(directory: str, world: World, setting: Setting) -> list[list[float]]:
    """Return the samples of this program, turn by turn, as this rank sees them. Collective.

    Args:
        directory: of the answers.
        world: of the ranks.
        setting: what this program does.
    """
    number = np.zeros(1, dtype=np.int64)

    def tell_all(mine: int) -> int:
        number[0] = mine
        world.transport.broadcast(number, 0)
        return int(number[0])

    return [
        time_turn(setting, world.transport.barrier)
        for _ in wait_for_turns(directory, world.rank, tell_all)
    ]


def wait_for_turns(directory: str, rank: int, tell_all: Callable[[int], int]) -> Iterator[int]:
    """Yield the numbers of the turns of this program as they come; on every rank.

    Args:
        directory: of the answers.
        rank: of this process.
        tell_all: returns the number that rank 0 has on all ranks; collective.
    """
    pipes = Path(directory)
    number = 0
    with contextlib.ExitStack() as stack:
        if rank == 0:
            turns = stack.enter_context((pipes / "turns").open("rb", buffering=0))
            done = stack.enter_context((pipes / "done").open("wb", buffering=0))
        while True:
            word = b""
            if rank == 0:
                done.write(b"d")
                word = turns.read(1)
            if not tell_all(int(word == b"t")):
                return
            yield number
            number += 1
