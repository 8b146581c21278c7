"""`distribute` on well-known architectures: which of them convert, and that those are right."""

from __future__ import annotations

import pytest
import torch
from architectures import ARCHITECTURES
from distribute_models import check_same
from partition_kit import grid

from kadril.nn.distribution.distribute import DistributeError
from kadril.testing import ranks
from kadril.world import World

# Sums of fewer than 2**10 products in fewer than 2**5 layers, with eps = 2**-53 each; norms over
# few elements multiply what was rounded by up to 2**10.
BOUND = 2.0 ** (10 + 5 + 10 - 53)

# Refused by name, for the reason that stands in the guide.
REFUSED = {"SegNet"}


def check(world: World, name: str, last: tuple[int, ...]) -> None:
    """Compare an architecture with its twin, or see it refused."""
    torch.manual_seed(2)
    architecture = ARCHITECTURES[name]
    model = architecture.make().double()
    x = torch.randn(architecture.shape, dtype=torch.float64)
    axes = [1] * (x.dim() - len(last)) + list(last)
    if name in REFUSED:
        with pytest.raises(DistributeError, match="cannot"):
            check_same(model, grid(world, axes), x, BOUND)
        return
    check_same(model, grid(world, axes), x, BOUND)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
@ranks(2)
def test_architectures(world: World, name: str) -> None:
    check(world, name, (2, 1))


@pytest.mark.long
@pytest.mark.parametrize("last", [(2, 2), (1, 4)])
@pytest.mark.parametrize("name", list(ARCHITECTURES))
@ranks(4)
def test_architectures_on_four_ranks(world: World, name: str, last: tuple[int, ...]) -> None:
    check(world, name, last)
