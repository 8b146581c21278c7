"""What tests of torch.distributed.checkpoint share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from sharded_kit import OPTIMIZERS, SHAPES, SmallerWorld, make_parameters, mean_of_step, train
from torch import nn

from kadril.sharded import POS_Trainer, dcp
from kadril.world import World

NAME, OPTIONS = OPTIMIZERS[3]


def named(parameters: list[nn.Parameter]) -> dict[str, nn.Parameter]:
    return {f"p{place}": each for place, each in enumerate(parameters)}


def zeros() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]


@contextmanager
def alone() -> Iterator[None]:
    """As a user has it who loads in one process; torch says that it does so."""
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


def means_of(num_steps: int) -> list:
    return [mean_of_step(step, 2) for step in range(num_steps)]


def make_trainer(world: World, names: tuple[str, ...] = ("a", "b"), size: int = 40) -> POS_Trainer:
    parameters = {name: nn.Parameter(torch.ones(size)) for name in names}
    trainer = POS_Trainer(parameters, "adam", world=world)
    for parameter in parameters.values():
        parameter.grad = torch.ones(size)
    trainer.step()
    return trainer


def everything(trainer: POS_Trainer) -> dict:
    """What is saved of a trainer, with its parameters."""
    tensors = [each for group in trainer.members() for each in group]
    return {"model": dict(zip(trainer.names, tensors, strict=True)), "optim": trainer}


def contents(trainer: POS_Trainer) -> list[torch.Tensor]:
    """Copies of the parameters and of this rank's part of the state."""
    state = trainer.state_dict()["state"]
    parts = [getattr(v, "local", v) for each in state.values() for v in each.values()]
    return [each.detach().clone() for each in [*everything(trainer)["model"].values(), *parts]]


def train_more(trainer: POS_Trainer) -> None:
    for group in trainer.members():
        for each in group:
            each.grad = torch.ones_like(each)
    trainer.step()
