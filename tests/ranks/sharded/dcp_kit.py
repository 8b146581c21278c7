"""Tools of tests of torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from sharded_kit import OPTIMIZERS, SmallerWorld, make_parameters, named, train

from kadril.sharded import POS_Trainer, dcp
from kadril.world import World

NAME, OPTIONS = OPTIMIZERS[3]


@contextmanager
def alone() -> Iterator[None]:
    """Load in one process, as a user may; torch says that it does so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


@contextmanager
def process_group(world: World, path: Path) -> Iterator[None]:
    """A gloo group of all ranks."""
    store = dist.FileStore(str(path / "store"), world.size)
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def save_on(world: World, size: int, path: Path, num_steps: int = 2) -> None:
    """Train some steps on the first ranks, and save."""
    part = SmallerWorld(world, size)
    if part.is_member:
        parameters = make_parameters()
        trainer = POS_Trainer(named(parameters), NAME, OPTIONS, world=part)
        train(trainer, parameters, range(num_steps))
        dcp.save({"model": named(parameters), "optim": trainer, "epoch": 5}, path, world=part)
    world.transport.barrier()
