"""Tools of tests of checkpoints: a small trainer, full disks, killed saves, damaged files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from kadril.sharded import POS_Trainer
from kadril.testing import Ranks
from kadril.world import World


def make_trainer(world: World, names: tuple[str, ...] = ("a", "b"), size: int = 40) -> POS_Trainer:
    """A trainer of equal parameters that has made one step."""
    parameters = {name: torch.nn.Parameter(torch.ones(size)) for name in names}
    trainer = POS_Trainer(parameters, "adam", world=world)
    train_more(trainer)
    return trainer


def train_more(trainer: POS_Trainer) -> None:
    """One step; gradients are ones."""
    for group in trainer.members():
        for each in group:
            each.grad = torch.ones_like(each)
    trainer.step()


def everything(trainer: POS_Trainer) -> dict[str, Any]:
    """Return what is saved of a trainer, with its parameters."""
    tensors = [each for group in trainer.members() for each in group]
    return {"model": dict(zip(trainer.names, tensors, strict=True)), "optim": trainer}


def contents(trainer: POS_Trainer) -> list[torch.Tensor]:
    """Copies of the parameters and of this rank's part of the state."""
    state = trainer.state_dict()["state"]
    parts = [getattr(v, "local", v) for each in state.values() for v in each.values()]
    return [each.detach().clone() for each in [*everything(trainer)["model"].values(), *parts]]


# ---- disks --------------------------------------------------------------------------------------


@contextmanager
def full_disk(is_full: bool) -> Iterator[None]:
    """Nothing can be made durable, as on a disk without space; on ranks where it is full."""

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        if is_full:
            patch.setattr(os, "fsync", fail)
        yield


def die_at_sync(moment: int) -> None:
    """Kill this process at the n-th call from here on that makes something durable."""
    num_calls = 0
    sync = os.fsync

    def die(descriptor: int) -> None:
        nonlocal num_calls
        if num_calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        num_calls += 1
        sync(descriptor)

    os.fsync = die


def kill_in_save(save: Callable[..., Any], victim: int, *arguments: Any) -> Any:
    """Run a function on two ranks, one of which is killed in it; how it ended on the other."""
    with Ranks(2) as killed:
        outcomes = killed.start(save, *arguments).wait(60.0)
    assert outcomes[victim].signal == signal.SIGKILL
    return outcomes[1 - victim]


def load_alone(load: Callable[..., Any], path: Path) -> Any:
    """Return the result of a function on one rank, in a process of its own."""
    with Ranks(1) as loader:
        (outcome,) = loader.start(load, path).wait(60.0)
    assert outcome.error is None, outcome
    return outcome.value


# ---- files --------------------------------------------------------------------------------------


def flip_a_bit(path: Path) -> None:
    """Near the end of a file, where the tensors of a shard are."""
    data = bytearray(path.read_bytes())
    data[-70] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-64])


def remove(path: Path) -> None:
    path.unlink()
