"""Drawn interpolations, and how they are compared with torch's; `test_upsample.py` says why so."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from box_kit import run, sequential, some_input
from partition_kit import LayerCase, block, grid

from kadril.nn.interpolation.upsample import DistributedUpsample
from kadril.testing import integer_valued
from kadril.world import World

MODES = {
    1: ["nearest", "nearest-exact", "linear"],
    2: ["nearest", "nearest-exact", "bilinear", "bicubic"],
    3: ["nearest", "nearest-exact", "trilinear"],
}
LARGEST = {1: 15, 2: 10, 3: 5}
SCALES = [1.0, 2.0, 4.0, 0.5, 1.5, 3.0, 0.7, 2.3, 1 / 3, 1.25]
LARGEST_INPUT = 8  # of `integer_valued`


def some_upsample(random: Random, num_workers: int, is_exact: bool) -> LayerCase | None:
    num_spatial = random.randint(1, 3)
    given = some_input(random, num_workers, num_spatial, LARGEST[num_spatial], unbatched=False)
    mode = random.choice(MODES[num_spatial])
    settings: dict[str, Any] = {"mode": mode}
    if not mode.startswith("nearest"):
        settings["align_corners"] = random.choice([None, False, not is_exact])
    if is_exact:
        settings["scale_factor"] = tuple(random.choice([1.0, 2.0, 4.0]) for _ in given.shape[2:])
    elif random.random() < 0.5:
        settings["size"] = tuple(random.randint(1, 2 * size + 3) for size in given.shape[2:])
    else:
        settings["scale_factor"] = tuple(random.choice(SCALES) for _ in given.shape[2:])
        settings["recompute_scale_factor"] = random.choice([None, False, True])
    outputs = settings.get("size") or [
        math.floor(size * scale)
        for size, scale in zip(given.shape[2:], settings["scale_factor"], strict=True)
    ]
    if any(size < length for size, length in zip(outputs, given.partition[2:], strict=True)):
        return None
    return given._replace(settings=settings)


def matrix_of(layer: torch.nn.Module, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return what torch does to one channel, as a matrix with a row for each output."""
    spatial = sizes[2:]
    num = math.prod(spatial)
    columns: torch.Tensor = layer(torch.eye(num, dtype=dtype).view(num, 1, *spatial))
    return columns.flatten(1).T


def bounds(A: torch.Tensor, mode: str, num_spatial: int) -> tuple[float, torch.Tensor]:
    """Bound the errors of outputs and of input gradients, between two ways to add."""
    eps = torch.finfo(A.dtype).eps
    num_terms = (A != 0).sum(0)
    if mode.startswith("nearest"):
        return 0.0, torch.zeros_like(A[0])
    if mode != "bicubic":
        # Along each dim, a product and a sum on either side; weights add up to 1.
        y = 4 * num_spatial * LARGEST_INPUT * eps
        sums = A.abs().sum(0) * LARGEST_INPUT
        return y, 2 * (num_terms + 2 * num_spatial) * sums * eps
    # Four products and sums along each of two dims on either side, and weights, whose absolute
    # values add up to 1.375 at most, that are themselves off by up to 3 eps each.
    y = (16 * 1.375**2 + 2 * 4 * 3 * 1.375) * LARGEST_INPUT * eps
    sums = num_terms * 1.2**2 * LARGEST_INPUT
    return y, (2 * (num_terms + 8) + 24) * sums * eps


def check_upsample(world: World, case: LayerCase, dtype: torch.dtype) -> None:
    layer = torch.nn.Upsample(**case.settings)
    mode = case.settings["mode"]
    x = integer_valued(case.shape, dtype, seed=4)
    P_x = grid(world, case.partition)
    reference = sequential(layer, x)
    y_grad = reference.y_grad.to(dtype)
    A = matrix_of(layer, case.shape, dtype)
    x_grad = reference.x_grad
    if mode.startswith("nearest"):
        x_grad = (y_grad.flatten(2) @ A).view(x.shape)
    got, got_grad = run(
        DistributedUpsample.of(layer, P_x), block(x, P_x, case.blocks), block(y_grad, P_x)
    )
    if not P_x.active:
        assert got.numel() == 0
        return
    y_bound, x_bound = bounds(A, mode, len(case.shape) - 2)
    assert ((got - block(reference.y, P_x)).abs() <= y_bound).all(), case
    allowed = block(x_bound.view(1, 1, *case.shape[2:]).expand(case.shape), P_x, case.blocks)
    assert ((got_grad - block(x_grad, P_x, case.blocks)).abs() <= allowed).all(), case
