"""An elastic program whose rank 1 kills itself: when, and when the next step has ended.

rank.py plain|torch|sharded DIRECTORY NUM_PROCESSES [forked]

The rank is killed when so many processes have come to `init()`, a spare one perhaps among them, and
where `forked` is given, the fork server has loaded what it loads.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kadril
from kadril.shared_engine.basics import init, rank
from kadril.shared_engine.elastic import ObjectState, State, run

NUM_STEPS = 20


def broadcast_object(value: Any) -> Any:
    """Give rank 0's object to all ranks, without torch."""
    data = pickle.dumps(value)
    length = int(kadril.broadcast(np.array([len(data)]), 0)[0])
    room = np.frombuffer(data, np.uint8) if rank() == 0 else np.zeros(length, np.uint8)
    return pickle.loads(kadril.broadcast(room.copy(), 0).tobytes())  # noqa: S301 - of this job


def plain() -> tuple[State, Callable[[], None]]:
    """Return a state of plain values, and a step."""
    state = ObjectState(broadcast_object, rank, step=0, weights=np.zeros(1000))

    def step() -> None:
        state.weights = kadril.allreduce(state.weights + rank(), name="weights", op="sum") / 4

    return state, step


def model_and_data() -> tuple[Any, Any]:
    """Return a small model of torch, and a batch."""
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
    return torch.nn.Sequential(*layers), torch.randn(32, 64)


def with_torch(*, is_sharded: bool) -> tuple[State, Callable[[], None]]:
    """Return the state of a small model, and a step of its training."""
    import torch

    import kadril.torch as hvd
    from kadril.sharded import POS_Trainer

    model, data = model_and_data()
    optimizer: Any
    if is_sharded:
        optimizer = POS_Trainer(model, "adam", {"lr": 0.01})
    else:
        inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return hvd.elastic.TorchState(model, optimizer, step=0), step


def await_processes(directory: Path, count: int) -> None:
    """Wait until so many processes have come, and a moment more, in which the last one waits."""
    while len(list(directory.glob("arrived.*"))) < count:
        time.sleep(0.05)
    time.sleep(0.5)


def await_fork_server() -> None:
    """Wait until the launcher has a fork server that has been asleep for half a second."""
    num_asleep = 0
    while num_asleep < 10:
        time.sleep(0.05)
        num_asleep = num_asleep + 1 if "S" in fork_server_states() else 0


def fork_server_states() -> list[str]:
    """Return the state of the launcher's fork server, as /proc has it."""
    launcher, states = os.getppid(), []
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        if b"kadril.launch.forking.fork_server" in Path(f"/proc/{child}/cmdline").read_bytes():
            states.append(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0])
    return states


def main() -> None:
    """Train until rank 1 was killed once and some steps have followed."""
    kind, directory = sys.argv[1], Path(sys.argv[2])
    if kind != "plain":
        # Before init(), as programs do: a spare process has it then. Torch's compiler it would
        # load by itself while it waits.
        import torch._dynamo  # noqa: F401

        import kadril.sharded
        import kadril.torch  # noqa: F401
    (directory / f"arrived.{os.getpid()}").touch()
    init()
    state, step = plain() if kind == "plain" else with_torch(is_sharded=kind == "sharded")
    values: Any = state
    reset: list[bool] = []
    state.register_reset_callbacks([lambda: reset.append(True)])

    @run
    def train(state: State) -> None:
        del state
        while values.step < 2 * NUM_STEPS:
            step()
            values.step += 1
            if values.step == NUM_STEPS - 1:
                await_processes(directory, int(sys.argv[3]))
                if "forked" in sys.argv and rank() == 1:
                    await_fork_server()
            if rank() == 0 and reset:
                reset.pop()
                print(f"stepped {time.monotonic()}", flush=True)
            values.commit()
            mark = directory / "killed"
            if rank() == 1 and values.step == NUM_STEPS and not mark.exists():
                mark.touch()
                print(f"killed {time.monotonic()}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    train(state)


if __name__ == "__main__":
    main()
