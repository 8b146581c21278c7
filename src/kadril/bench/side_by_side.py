"""Programs that live side by side and take turns: each setting in processes of its own.

    program     alone    kadril   DDP         round 1    alone    kadril   DDP
    processes   2        2        2           round 2    kadril   DDP      alone

As with settings in the same processes (turns.py), a burst of noise meets all settings of a round.
But what one does to its process, such as the allocator's habits, does nothing to the others: each
runs as it would by itself. Whoever has no turn sleeps.

Between the parent and rank 0 of each program are two pipes in the directory of its answers:

    turns      a byte for each turn, and another one after the last
    done       a byte when it is ready, and after each turn
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kadril.bench.peers import Start
from kadril.bench.program import ProgramError, RunningProgram
from kadril.bench.turns import Samples, Setting, slowest, take_turn
from kadril.world import World

__all__ = [
    "Answers",
    "run_side_by_side",
    "take_own_turns",
    "time_side_by_side",
    "wait_for_turns",
]

# What each rank of a program left.
Answers = list[dict[str, Any]]

LOOK_AGAIN = 0.2  # seconds between two looks at whether a program is still there


class Guest:
    """A program that waits for its turns, as the parent sees it; to be used as a context."""

    def __init__(self, running: RunningProgram) -> None:
        self.running = running
        directory = Path(running.directory)
        # Open for both, so that opening does not wait for the other end.
        self._turns = os.open(directory / "turns", os.O_RDWR)
        self._done = os.open(directory / "done", os.O_RDWR)

    def __enter__(self) -> Guest:
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
    """Make both."""
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
    """Let all settings of a program take turns; what their ranks left, by setting.

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
        guests: dict[str, Guest] = {}
        for name, arguments in settings.items():
            running = RunningProgram(
                program,
                arguments,
                num_ranks=num_ranks,
                start=(starts or {}).get(name),
                prepare=make_pipes,
            )
            guests[name] = stack.enter_context(Guest(stack.enter_context(running)))
        ready = [guest for guest in guests.values() if guest.await_done(timeout)]
        for number in range(num_rounds):
            first = number % len(ready) if ready else 0
            for guest in (*ready[first:], *ready[:first]):
                guest.take_turn(timeout)
        for guest in guests.values():
            guest.let_go()
        return {name: guest.running.wait(timeout) for name, guest in guests.items()}


def time_side_by_side(
    program: Path,
    settings: Mapping[str, Sequence[str]],
    *,
    num_ranks: int,
    num_rounds: int,
    num_starts: int,
    timeout: float,
    starts: Mapping[str, Start] | None = None,
) -> tuple[Samples, dict[str, str]]:
    """Rounds of all settings in several sets of processes; and why some have none.

    What lies where in a heap is a matter of luck, and stays for as long as a process does. The
    first round of each set is left out: processes have not found their pace by then.

    Args:
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
                missing[setting] = answers[0]["missing"]
                continue
            rounds = slowest([{setting: one["rounds"]} for one in answers])[setting]
            timed.setdefault(setting, []).extend(rounds[1:])
    return timed, missing


def take_own_turns(directory: str, world: World, setting: Setting) -> list[list[float]]:
    """The samples of this program, turn by turn, as this rank sees them; collective.

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

    rounds = []
    for _ in wait_for_turns(directory, world.rank, tell_all):
        gc.collect()
        rounds.append(take_turn(setting, world.transport.barrier))
    return rounds


def wait_for_turns(directory: str, rank: int, tell_all: Callable[[int], int]) -> Iterator[int]:
    """Turns of this program, one after the other; on every rank.

    Args:
        directory: of the answers.
        rank: of this process.
        tell_all: gives all ranks the number that rank 0 has; collective.
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
