"""The program of a rank: joins the others of its contestant, and does what the driver says.

    python rank.py SOCKET CONTESTANT          under mpirun; other ranks are forked by `forks.py`

The driver, which is outside of all hosts, and its ranks talk by a socket in a directory that hosts
share. So a rank that has no turn sleeps in a read, and the ranks of MPI do not spin.

    driver                             rank
    prepare, bytes          -->        make the array, try the call, check its result
    touch                   -->        write the array, as a backward pass does
    run, calls, at          -->        sleep until then, call, tell how long it took
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from contestants import SUMS, TRAININGS, Contestant

from kadril.bench.link import Link, LinkLost

__all__ = ["run_rank"]

TIMEOUT = 3600.0  # whoever has no turn waits for long
MODEL = "mlp"


class Group(Protocol):
    """The ranks of a contestant, as one of them sees them.

    Attributes:
        rank: of this process.
        size: number of ranks.
    """

    rank: int
    size: int

    def bind(self, array: npt.NDArray[np.float32]) -> Callable[[], object]:
        """Return the all-reduce of an array, in place."""
        ...


class KadrilGroup:
    """A world of kadril."""

    def __init__(self, options: dict[str, Any]) -> None:
        import kadril
        import kadril.torch as hvd

        self.world = kadril.init(stall_warning=TIMEOUT, patience=TIMEOUT, **options)
        hvd.init()
        self.rank, self.size = self.world.rank, self.world.size

    def bind(self, array: npt.NDArray[np.float32]) -> Callable[[], object]:
        """See `Group`."""
        import torch

        tensor = torch.from_numpy(array)
        return lambda: self.world.transport.allreduce(tensor)


class GlooGroup:
    """The default process group of torch."""

    def __init__(self) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def bind(self, array: npt.NDArray[np.float32]) -> Callable[[], object]:
        """See `Group`."""
        import torch
        import torch.distributed as dist

        tensor = torch.from_numpy(array)
        return lambda: dist.all_reduce(tensor)


class MpiGroup:
    """COMM_WORLD."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.rank, self.size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()

    def bind(self, array: npt.NDArray[np.float32]) -> Callable[[], object]:
        """See `Group`."""
        return lambda: self.mpi.COMM_WORLD.Allreduce(self.mpi.IN_PLACE, array)


def open_group(contestant: Contestant) -> Group:
    """Join the other ranks; collective."""
    if contestant.library == "kadril":
        return KadrilGroup(dict(contestant.options))
    return GlooGroup() if contestant.library == "gloo" else MpiGroup()


class SumTask:
    """All-reduces of an array."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.array = np.zeros(0, dtype=np.float32)
        self.call: Callable[[], object] = lambda: None

    def prepare(self, num_bytes: int) -> None:
        """Make the array, and check the result of a call: small whole numbers, so it is exact."""
        count = num_bytes // 4
        self.array = np.empty(count, dtype=np.float32)
        self.call = self.group.bind(self.array)
        pattern = np.arange(count, dtype=np.float32) % 8
        self.array[:] = pattern + self.group.rank
        self.call()
        ranks = self.group.size * (self.group.size - 1) // 2
        if not np.array_equal(self.array, pattern * self.group.size + ranks):
            raise ValueError(f"wrong sum of {num_bytes} bytes on rank {self.group.rank}")

    def touch(self) -> None:
        """Write the array; any number but 0 would grow from call to call."""
        self.array[:] = 0.0


class TrainingTask:
    """Training steps, as another benchmark has them."""

    def __init__(self, group: Group, folder: str, setting: str) -> None:
        import torch

        torch.set_num_threads(1)
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))
        settings = importlib.import_module("settings")
        if folder == "training":
            import kadril.torch as hvd

            hvd.init()
            self.trainer, self.call, _ = settings.make_trainer(MODEL, setting)
        else:
            task = importlib.import_module("models").MODELS[MODEL](group.rank)
            self.call = settings.make_step(setting, task, False)

    def prepare(self, num_bytes: int) -> None:
        """Take the first step."""
        del num_bytes
        self.call()

    def touch(self) -> None:
        """Do nothing: a step writes its gradients itself."""


def run_rank(path: str, name: str) -> None:
    """Join the others, and take turns until the driver is gone."""
    contestant = {**SUMS, **TRAININGS}[name]
    group = open_group(contestant)
    training = contestant.training
    task = SumTask(group) if training is None else TrainingTask(group, *training)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    link = Link(sock)
    link.send({"contestant": name, "rank": group.rank})
    try:
        while True:
            link.send(obey(link.receive(), task))
    except LinkLost:
        os._exit(0)  # without a farewell to ranks that may have left


def obey(message: dict[str, Any], task: SumTask | TrainingTask) -> dict[str, Any]:
    """Do what the driver says, and return the answer."""
    try:
        if message["do"] == "prepare":
            task.prepare(message["bytes"])
        elif message["do"] == "touch":
            task.touch()
        else:
            return {"seconds": time_calls(task.call, message["calls"], message["at"])}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    return {}


def time_calls(call: Callable[[], object], num_calls: int, at: float) -> float:
    """Return the seconds per call, from a moment at which all ranks begin: they share a clock."""
    time.sleep(max(0.0, at - time.monotonic()))
    for _ in range(num_calls):
        call()
    return (time.monotonic() - at) / num_calls


if __name__ == "__main__":
    run_rank(*sys.argv[1:])
