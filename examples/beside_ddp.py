"""Time a training step beside DistributedDataParallel on gloo; for `mnist.py`."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import kadril.torch as hvd

NUM_STEPS = 3
ALONE, KADRIL = "no communication: each rank for itself", "kadril.torch.DistributedOptimizer"
DDP = "DistributedDataParallel on gloo"


@contextmanager
def gloo() -> Any:
    """Open a process group; all ranks need the path of one file for it."""
    with tempfile.TemporaryDirectory() as directory:
        shared = hvd.broadcast_object(directory, root_rank=0, name="directory")
        store = dist.FileStore(f"{shared}/store", hvd.size())
        dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())
        yield
        dist.destroy_process_group()
        hvd.barrier()  # the file is removed when no rank needs it any more


def make_step(name: str, model: nn.Module, batch: int) -> Callable[[], None]:
    """Return a training step on random data."""
    if name == DDP:
        model = DistributedDataParallel(model)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    if name == KADRIL:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    images, labels = torch.randn(batch, 784), torch.randint(10, (batch,))

    def step() -> None:
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compare_steps(
    make_model: Callable[[], nn.Module], batch: int, num_rounds: int
) -> dict[str, float]:
    """Return milliseconds per step; settings take turns, so that noise affects all alike."""
    with gloo():
        steps = {name: make_step(name, make_model(), batch) for name in (ALONE, KADRIL, DDP)}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(num_rounds):
            for name, step in steps.items():
                step()
                hvd.barrier()
                start = time.perf_counter()
                for _ in range(NUM_STEPS):
                    step()
                times[name].append((time.perf_counter() - start) / NUM_STEPS * 1000)
    return {name: statistics.median(values) for name, values in times.items()}
