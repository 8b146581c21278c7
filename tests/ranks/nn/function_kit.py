"""Models of one call, for the tests of what `distribute` knows besides the usual layers."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from distribute_models import check_same, make_exact
from partition_kit import grid
from torch import nn

from kadril.nn.distribution.distribute import DistributeError, distribute
from kadril.testing import integer_valued
from kadril.world import World

__all__ = ["SHAPE", "Applied", "Function", "check_functions", "check_refusals", "partitions"]

Function = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]

SHAPE = (2, 2, 8, 6)


class Applied(nn.Module):
    """A convolution, and then a function of the model, the input and the convolved input.

    Args:
        function: see above.
        members: modules, parameters and buffers that it uses.
    """

    def __init__(self, function: Function, members: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.function = function
        for name, member in (members or {}).items():
            if isinstance(member, torch.Tensor) and not isinstance(member, nn.Parameter):
                self.register_buffer(name, member)
            else:
                setattr(self, name, member)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x, self.conv(x))


def partitions(world: World) -> list[tuple[int, ...]]:
    """Rows in two; rows and columns in two, or the batch and columns."""
    rows = (1, 1, 2, 1)
    return {1: [(1, 1, 1, 1)], 2: [rows], 3: [rows], 4: [(1, 1, 2, 2), (2, 1, 1, 2)]}[world.size]


def check_functions(
    world: World, cases: Mapping[str, tuple[Any, ...]], bound: float = 0.0, **options: Any
) -> None:
    """Compare models of one call with their twins.

    Args:
        world: of the test.
        cases: function and members of each.
        bound: see `check_same`; with 0, inputs and parameters are whole numbers.
        options: of `distribute`.
    """
    for name, (function, *members) in cases.items():
        model = Applied(function, *copy.deepcopy(members)).double()
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.5)
        x = torch.randn(SHAPE, dtype=torch.float64)
        if bound == 0:
            make_exact(model)
            x = integer_valued(SHAPE, seed=7)
        for shape in partitions(world):
            try:
                check_same(model, grid(world, shape), x, bound, **options)
            except Exception as error:
                raise AssertionError(f"{name} on {shape}: {error}") from error


def check_refusals(world: World, cases: Mapping[str, tuple[str, Any, Mapping[str, Any]]]) -> None:
    """Make sure that models are refused, with a message that matches.

    Args:
        world: of the test.
        cases: pattern of the message, function and members of each.
    """
    P = grid(world, partitions(world)[-1])
    for name, (pattern, function, members) in cases.items():
        model = Applied(function, members).double()
        with pytest.raises(DistributeError) as caught:
            distribute(model, P, torch.empty(SHAPE, dtype=torch.float64))
        assert re.search(pattern, str(caught.value)), f"{name}: {caught.value}"
