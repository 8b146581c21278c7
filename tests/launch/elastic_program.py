"""A program for elastic jobs that loads neither torch nor TensorFlow, so that it starts at once.

    elastic_program.py DIRECTORY LAST_STEP COMMIT_EVERY [FAULT ...]

A fault is `ACTION:STEP:RANK`: whoever has that rank does it when it has done that step, once in the
life of the job. A negative step -G is the moment when a process has joined generation G and does
not have the state yet. `ACTION@PLACE:STEP:RANK` has other moments:

    kill@commit:STEP:RANK    up to 3 ms after the commit of that step has begun
    kill@save:STEP:RANK      in the middle of a commit: others may have saved it, this rank has not
    kill@reset:G:RANK        after the survivors have met as generation G, before they have synced
    kill@sync:G:RANK         up to 3 ms after that

`hold` waits until there is a file `go` in DIRECTORY.

`await:STEP:SIZE` has all ranks wait at that step until they are so many; 101 stands for generation
1 or a later one, and so on. `await@callback:STEP:0` has them wait until they have called the
callback. The word `even` has each step do the same however many ranks there are. DIRECTORY keeps
notes of what happened:

    fault.N          fault N was done: when, and in which generation
    steps.PID        a line for each step that a process has done: when, in which generation, number
    broken           there: workers cannot start after fault 0
    slots            what hosts.sh prints
    callback.RANK    the step at which a preemption callback was called
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

import kadril
from kadril import MismatchError, init, rank, size
from kadril.elastic import ObjectState, State, run


class Fault:
    """One of the faults of the command line."""

    def __init__(self, number: int, word: str, directory: Path) -> None:
        action, step, who = word.split(":")
        self.action, _, self.place = action.partition("@")
        self.step, self.rank = int(step), int(who)
        self.mark = directory / f"fault.{number}"
        self.timer: threading.Timer | None = None

    def may_happen(self, step: int, place: str = "") -> None:
        if (
            self.action != "await"
            and (step, place, rank()) == (self.step, self.place, self.rank)
            and not self.mark.exists()
        ):
            self.mark.write_text(f"{time.monotonic()} {os.environ['KADRIL_GENERATION']}")
            if place in ("commit", "sync"):
                # Within what this thread is about to do; where exactly is left to chance.
                self.timer = threading.Timer(random.uniform(0.0, 0.003), act, [self.action])
                self.timer.start()
            else:
                act(self.action)

    def has_come(self) -> bool:
        """Whether that happened which ranks wait for."""
        if self.place == "callback":
            return self.mark.with_name(f"callback.{rank()}").exists()
        return self.rank == size() or 100 <= self.rank <= kadril.current().generation + 100


class Faults:
    """All faults of the command line; read by `sys.argv`."""

    def __init__(self) -> None:
        self.directory = Path(sys.argv[1])
        words = [word for word in sys.argv[4:] if ":" in word]
        self.all = [Fault(number, word, self.directory) for number, word in enumerate(words)]

    def may_happen_after(self, step: int) -> None:
        """Note a step that has been done; and what is to happen then."""
        with (self.directory / f"steps.{os.getpid()}").open("a") as notes:
            notes.write(f"{time.monotonic()} {os.environ['KADRIL_GENERATION']} {step}\n")
        self.may_happen(step)

    def may_happen(self, step: int, place: str = "") -> None:
        for fault in self.all:
            fault.may_happen(step, place)

    def await_timers(self) -> None:
        """Wait for what was to happen by now: later steps may be the last ones of the others."""
        for fault in self.all:
            if fault.timer is not None:
                fault.timer.join()

    def may_happen_at_start(self) -> None:
        self.may_happen(-int(os.environ["KADRIL_GENERATION"]))

    def may_happen_at_reset(self) -> None:
        generation = int(os.environ["KADRIL_GENERATION"])
        self.may_happen(generation, "reset")
        self.may_happen(generation, "sync")

    def await_change(self, state: State, step: int) -> None:
        for fault in self.all:
            if fault.action == "await" and fault.step == step:
                while not fault.has_come():
                    state.check_host_updates()


def act(action: str) -> None:
    signals = {
        "kill": signal.SIGKILL,
        "stop": signal.SIGSTOP,
        "term": signal.SIGTERM,
        "usr1": signal.SIGUSR1,
    }
    if action == "pause":
        resume = f"sleep 0.3; kill -CONT {os.getpid()}"
        subprocess.Popen(["/bin/sh", "-c", resume], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action in signals:
        os.kill(os.getpid(), signals[action])
    elif action.startswith("launcher-"):
        os.kill(os.getppid(), signals[action.removeprefix("launcher-")])
    elif action == "hold":
        while not Path(sys.argv[1], "go").exists():
            time.sleep(0.01)
    elif action == "sleep":
        time.sleep(8.0)  # longer than any other timeout of the test
    elif action == "raise":
        raise ValueError("an error of the program, on one rank")
    elif action == "exit":
        os._exit(3)
    elif action == "mismatch":
        raise MismatchError("shapes differ")
    else:
        slots = {"shrink": 2, "grow": 4}[action]
        Path(sys.argv[1], "slots").write_text(f"localhost:{slots}\n")


class Values(ObjectState):
    """The state of this program, which may die in the middle of a commit."""

    faults: Faults

    def save(self) -> None:
        if hasattr(self, "faults"):
            self.faults.may_happen(self.step, "save")
        super().save()


def train(state: Values, last: int, every: int, faults: Faults) -> None:
    is_even = "even" in sys.argv
    faults.await_timers()
    while state.step < last:
        faults.await_change(state, state.step)
        pull = np.array([(state.step + 1.0) * (1 + rank()), 1.0 / size()])
        if is_even:
            pull = np.array([state.step % 7 + 2.0 * rank() - size() + 1, 1.0])
        total = kadril.allreduce(pull, name="pull", op="sum")
        state.velocity = 0.5 * state.velocity + (total / size() if is_even else total)
        state.weights = state.weights - 0.125 * state.velocity
        state.step += 1
        faults.may_happen_after(state.step)
        if state.step % every == 0:
            faults.may_happen(state.step, "commit")
            state.commit()
            faults.await_timers()


def main() -> None:
    directory, last, every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if (directory / "broken").exists() and (directory / "fault.0").exists():
        raise SystemExit("this worker cannot start")
    faults = Faults()
    init()
    faults.may_happen_at_start()
    state = Values(step=0, weights=np.zeros(2), velocity=np.zeros(2))
    state.faults = faults
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(size()), faults.may_happen_at_reset])

    def note() -> None:
        (directory / f"callback.{rank()}").write_text(str(state.step))

    state.register_preemption_callbacks([note])
    run(train)(state, last, every, faults)
    tell_end(resets, state.weights.tolist())


def tell_end(resets: list[int], weights: list[float]) -> None:
    numbers = " ".join(value.hex() for value in weights)
    text = f"end: rank {rank()} of {size()} pid {os.getpid()} resets {resets} weights {numbers}"
    print(text)  # noqa: T201


if __name__ == "__main__":
    main()
