"""A program for elastic jobs that loads neither torch nor TensorFlow, so that it starts at once.

    elastic_program.py DIRECTORY LAST_STEP COMMIT_EVERY [FAULT ...]

A fault is `ACTION:STEP:RANK`: whoever has that rank does it when it has done that step, once in the
life of the job. A negative step -G is the moment when a process has joined generation G and does
not have the state yet. `await:STEP:SIZE` has all ranks wait at that step until they are so many;
101 stands for generation 1, and so on. DIRECTORY keeps notes of what happened:

    fault.N          fault N was done
    broken           there: workers cannot start after fault 0
    slots            what hosts.sh prints
    callback.RANK    the step at which a preemption callback was called
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import kadril
from kadril.errors import MismatchError
from kadril.shared_engine.basics import init, rank, size
from kadril.shared_engine.elastic import ObjectState, run


def broadcast_object(value: Any) -> Any:
    data = pickle.dumps(value)
    length = int(kadril.broadcast(np.array([len(data)]), 0)[0])
    room = np.frombuffer(data, np.uint8) if rank() == 0 else np.zeros(length, np.uint8)
    return pickle.loads(kadril.broadcast(room.copy(), 0).tobytes())  # noqa: S301 - of a rank of this job


class Fault:
    """One of the faults of the command line."""

    def __init__(self, number: int, word: str, directory: Path) -> None:
        action, step, who = word.split(":")
        self.action, self.step, self.rank = action, int(step), int(who)
        self.mark = directory / f"fault.{number}"

    def may_happen(self, step: int) -> None:
        if (
            self.action != "await"
            and step == self.step
            and rank() == self.rank
            and not self.mark.exists()
        ):
            self.mark.touch()
            act(self.action)


def act(action: str) -> None:
    signals = {
        "kill": signal.SIGKILL,
        "stop": signal.SIGSTOP,
        "term": signal.SIGTERM,
        "usr1": signal.SIGUSR1,
    }
    if action in signals:
        os.kill(os.getpid(), signals[action])
    elif action == "launcher-term":
        os.kill(os.getppid(), signal.SIGTERM)
    elif action == "launcher-usr1":
        os.kill(os.getppid(), signal.SIGUSR1)
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


def await_change(state: ObjectState, faults: list[Fault]) -> None:
    for fault in faults:
        if fault.action == "await" and fault.step == state.step:
            while fault.rank not in (size(), kadril.current().generation + 100):
                state.check_host_updates()


def train(state: ObjectState, last: int, every: int, faults: list[Fault]) -> None:
    while state.step < last:
        await_change(state, faults)
        pull = np.array([(state.step + 1.0) * (1 + rank()), 1.0 / size()])
        total = kadril.allreduce(pull, name="pull", op="sum")
        state.velocity = 0.5 * state.velocity + total
        state.weights = state.weights - 0.125 * state.velocity
        state.step += 1
        for fault in faults:
            fault.may_happen(state.step)
        if state.step % every == 0:
            state.commit()


def main() -> None:
    directory, last, every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    faults = [Fault(number, word, directory) for number, word in enumerate(sys.argv[4:])]
    if (directory / "broken").exists() and (directory / "fault.0").exists():
        raise SystemExit("this worker cannot start")
    init()
    for fault in faults:
        fault.may_happen(-int(os.environ["KADRIL_GENERATION"]))  # before it has the state
    state = ObjectState(broadcast_object, rank, step=0, weights=np.zeros(2), velocity=np.zeros(2))
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(size())])

    def note() -> None:
        (directory / f"callback.{rank()}").write_text(str(state.step))

    state.register_preemption_callbacks([note])
    run(train)(state, last, every, faults)
    numbers = " ".join(value.hex() for value in state.weights.tolist())
    text = f"end: rank {rank()} of {size()} pid {os.getpid()} resets {resets} weights {numbers}"
    print(text)  # noqa: T201


if __name__ == "__main__":
    main()
