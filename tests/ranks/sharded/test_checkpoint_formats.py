"""Checkpoints of earlier versions: files that were written once, and have to be read for ever.

Each folder `format_<n>` was written by two ranks after two steps. All numbers are exact, so any
version of torch computes the expected ones bit for bit.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gradient_kit import assert_same
from sharded_kit import trained_alone, zeros

from kadril.sharded import POS_Trainer
from kadril.testing import ranks
from kadril.world import World

FOLDERS = sorted(Path(__file__).parent.glob("format_*"))
SHAPES = ((3,), (2, 5), (), (0,), (41,))
OPTIONS = {"lr": 0.125, "momentum": 0.5}


def expected() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    return trained_alone("SGD", OPTIONS, 2, 2, shapes=SHAPES)


def check_state(trainer: POS_Trainer) -> None:
    """On rank 0 the momentum is that of one process."""
    found = trainer.consolidate()
    if found is not None:
        state = expected()[1].state_dict()["state"]
        assert found["state"].keys() == state.keys()
        for place, values in state.items():
            momentum = found["state"][place]["momentum_buffer"]
            assert torch.equal(momentum, values["momentum_buffer"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))
@ranks(3)
def test_a_directory_of_an_earlier_version_is_loaded(world: World, folder: Path) -> None:
    # The name of the format once changed with the path of its module: no earlier one was read.
    parameters = zeros(SHAPES)
    trainer = POS_Trainer(parameters, "SGD", OPTIONS, world=world)
    assert trainer.load(folder) == {"step": 2}
    assert_same(parameters, expected()[0])
    check_state(trainer)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))
@ranks(3)
def test_pickled_parts_of_an_earlier_version_are_loaded(world: World, folder: Path) -> None:
    # A pickle names the function that rebuilds a part by the path of its module.
    trainer = POS_Trainer(zeros(SHAPES), "SGD", OPTIONS, world=world)
    trainer.load_state_dict([torch.load(path) for path in sorted(folder.glob("*.pt"))])
    check_state(trainer)
