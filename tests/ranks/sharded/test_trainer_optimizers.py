"""Every optimizer that can be sharded has the bits of the plain one, in every dtype."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from sharded_kit import make_parameters, mean_of_step, one_process, plain, train

from kadril.sharded import POS_Trainer
from kadril.sharded.optimizer.supported_optimizers import ELEMENTWISE, MATRIX
from kadril.testing import ranks
from kadril.world import World

NUM_STEPS = 3

MATRICES = ((3, 40), (33, 4), (1, 7), (17, 9))
FULL = ((3,), (2, 5), (), (4, 1, 3), (1021,), *MATRICES)


def shapes_of(name: str) -> tuple[tuple[int, ...], ...]:
    """Muon takes matrices alone; Adafactor divides by the number of elements, so not by 0."""
    if name in MATRIX:
        return MATRICES if name == "Muon" else FULL
    return (*FULL, (0,))


# More state and more arithmetic, where an optimizer has these.
OPTIONS = {"weight_decay": 0.25, "momentum": 0.5, "amsgrad": True, "centered": True}


def options_of(name: str) -> dict[str, Any]:
    """Options with an eps that float16 has: with 0 some optimizers divide 0 by 0."""
    known = inspect.signature(getattr(torch.optim, name)).parameters
    options = {"lr": 0.125, **{key: value for key, value in OPTIONS.items() if key in known}}
    if "eps" in known and isinstance(known["eps"].default, float):
        options["eps"] = 2.0**-8
    return options


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@ranks(2)
def test_every_optimizer_has_the_bits_of_the_plain_one(world: World, dtype: torch.dtype) -> None:
    """Gradients are halves of whole numbers up to 10, which all dtypes have, so means are exact."""
    for name in sorted(ELEMENTWISE | MATRIX):
        kind: dict[str, Any] = {"shapes": shapes_of(name), "dtype": dtype}
        means = [mean_of_step(step, world.size, **kind) for step in range(NUM_STEPS)]
        expected, _ = one_process(plain(name, options_of(name)), means, **kind)
        for how in ({"stage": 1}, {"stage": 2}, {"rule": "largest_first"}):
            parameters = make_parameters(**kind)
            trainer = POS_Trainer(parameters, name, options_of(name), world=world, **how)
            train(trainer, parameters, range(NUM_STEPS), **kind)
            for shape, found, wanted, first in zip(
                kind["shapes"], parameters, expected, make_parameters(**kind), strict=True
            ):
                assert torch.equal(found, wanted), (name, how, shape)
                assert found.numel() == 0 or not torch.equal(found, first), (name, shape)
