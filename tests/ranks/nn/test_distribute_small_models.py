"""`distribute` on many small models: each gives the ordinary answer, or is refused by name.

Outside programs found calls that were taken for whole although they were split: one block came back
for the whole map, or zeros stood at the cut, and nobody said so. Here every model is compared with
the ordinary one, value by value and gradient by gradient; a refusal has to be expected.
"""

from __future__ import annotations

import pytest
import torch
from distribute_models import check_same
from partition_kit import grid
from small_models import REFUSED, SmallModel, small_models

from kadril.nn.distribution.distribute import DistributeError
from kadril.testing import ranks
from kadril.world import World

# Sums of fewer than 2**10 products in fewer than 2**3 layers, with eps = 2**-53 each; norms and
# roots of sums that cancel lose up to 2**9.
BOUND = 2.0 ** (10 + 3 + 9 - 53)

NUM_PARTS = 4
MODELS = list(small_models())


def verdict(piece: object, place: str, world: World, shape: tuple[int, ...]) -> str:
    """Say whether a model is "right", "refused", or what is wrong."""
    torch.manual_seed(1)
    model = SmallModel(piece, place).double()  # type: ignore[arg-type]
    x = torch.randn(SmallModel.shape, dtype=torch.float64)
    try:
        check_same(model, grid(world, shape), x, BOUND)
    except DistributeError as error:
        return "refused" if "cannot" in str(error) else f"refused without a reason: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "right"


def check_models(world: World, part: int, shape: tuple[int, ...]) -> None:
    """Check every model of a part; report all that are wrong, on all ranks."""
    wrong = []
    for name, piece, place in MODELS[part::NUM_PARTS]:
        found = verdict(piece, place, world, shape)
        if found != ("refused" if name in REFUSED else "right"):
            wrong.append(f"{name}: {found}")
        world.transport.barrier()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", range(NUM_PARTS))
@ranks(2, timeout=110.0)  # hundreds of models, over networks too
def test_small_models(world: World, part: int) -> None:
    check_models(world, part, (1, 1, 2, 1))


@pytest.mark.long
@pytest.mark.parametrize("shape", [(1, 1, 2, 2), (2, 1, 1, 2), (1, 2, 2, 1), (1, 1, 1, 4)])
@pytest.mark.parametrize("part", range(NUM_PARTS))
@ranks(4, timeout=200.0)
def test_small_models_on_four_ranks(world: World, part: int, shape: tuple[int, ...]) -> None:
    check_models(world, part, shape)


def test_there_are_at_least_a_hundred_and_fifty() -> None:
    names = [name for name, _, _ in MODELS]
    assert len(set(names)) == len(names) >= 150
