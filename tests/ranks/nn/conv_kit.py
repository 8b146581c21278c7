"""Tools of the tests of convolutions.

Values are whole numbers in float64, so every sum is exact, and equality is meant bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril.testing import integer_valued


def with_whole_numbers(layer: torch.nn.Module) -> Any:
    """Return a layer in float64 whose parameters are whole numbers."""
    layer = layer.double()
    with torch.no_grad():
        for seed, parameter in enumerate(layer.parameters(), 1):
            parameter.copy_(integer_valued(parameter.shape, seed=seed))
    return layer


def gradients(layer: torch.nn.Module) -> list[torch.Tensor]:
    """Take out the gradients of all parameters."""
    found = []
    for parameter in layer.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad)
        parameter.grad = None
    return found


def assert_all_equal(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        assert torch.equal(mine, theirs)
