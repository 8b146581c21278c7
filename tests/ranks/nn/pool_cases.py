"""Drawn pools, and how they are compared with torch's; see `test_pools.py` for the numbers."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from box_kit import has_enough, run, sequential, some_input
from partition_kit import LayerCase, block, grid

from kadril.nn.pool.avg import DistributedAvgPool1d, DistributedAvgPool2d, DistributedAvgPool3d
from kadril.nn.pool.max import DistributedMaxPool1d, DistributedMaxPool2d, DistributedMaxPool3d
from kadril.testing import integer_valued
from kadril.world import World

MAX = {
    1: (torch.nn.MaxPool1d, DistributedMaxPool1d),
    2: (torch.nn.MaxPool2d, DistributedMaxPool2d),
    3: (torch.nn.MaxPool3d, DistributedMaxPool3d),
}
AVG = {
    1: (torch.nn.AvgPool1d, DistributedAvgPool1d),
    2: (torch.nn.AvgPool2d, DistributedAvgPool2d),
    3: (torch.nn.AvgPool3d, DistributedAvgPool3d),
}
# A multiple of every count of up to 4 inputs along each dim, and of divisors of up to 5.
FACTOR = {num: 12**num * 5 for num in (1, 2, 3)}


def some_pool(random: Random, num_workers: int, is_max: bool) -> LayerCase | None:
    num_spatial = random.randint(1, 3)
    given = some_input(random, num_workers, num_spatial, largest=[0, 15, 11, 6][num_spatial])

    def each(largest: int) -> tuple[int, ...]:
        return tuple(random.randint(1, largest) for _ in range(num_spatial))

    kernel = each(4)
    settings: dict[str, Any] = {"kernel_size": kernel, "ceil_mode": random.random() < 0.5}
    settings["stride"] = random.choice([None, each(4)])
    settings["padding"] = tuple(random.randint(0, k // 2) for k in kernel)
    if is_max:
        settings["dilation"] = each(2)
    else:
        settings["count_include_pad"] = random.random() < 0.5
        if num_spatial > 1:
            settings["divisor_override"] = random.choice([None, None, 1, 3, -5])
    torch_class = (MAX if is_max else AVG)[num_spatial][0]
    if not has_enough(lambda: torch_class(**settings), given):
        return None
    # A dilated kernel may have all its elements in the padding; torch then gives the gradient of
    # that maximum to an element beyond the channel's memory.
    if is_max and not torch_class(**settings)(torch.zeros(given.shape)).isfinite().all():
        return None
    return given._replace(settings={"num_spatial": num_spatial, **settings})


def check_pool(world: World, case: LayerCase, is_max: bool) -> None:
    """Compare with the torch layer: output, and gradient of the input."""
    given = dict(case.settings)
    num_spatial = given.pop("num_spatial")
    torch_class, twin_class = (MAX if is_max else AVG)[num_spatial]
    x = integer_valued(case.shape, seed=4)
    reference = sequential(torch_class(**given), x, 1 if is_max else FACTOR[num_spatial])
    P_x = grid(world, case.partition)
    twin = twin_class.of(torch_class(**given), P_x)
    y, x_grad = run(twin, block(x, P_x, case.blocks), block(reference.y_grad, P_x))
    if not P_x.active:
        assert y.numel() == 0
        return
    assert torch.equal(y, block(reference.y, P_x)), case
    assert torch.equal(x_grad, block(reference.x_grad, P_x, case.blocks)), case
