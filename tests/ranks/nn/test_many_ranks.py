"""Layers and moves on 5 to 8 ranks: blocks that are empty or narrower than halos, idle ranks.

Each kind is compared with one process, as in its own tests: outputs and all gradients.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from box_kit import seeded
from conv_cases import (
    CONVOLUTIONS,
    TRANSPOSED,
    check_drawn,
    check_twin,
    feature_cases,
    transpose_cases,
)
from conv_general_cases import check_general, general_cases
from hypothesis import strategies as st
from norm_kit import batch_norm_twin, compare, group_norm_twin, layer_norm_twin, randomize
from partition_kit import (
    Sizes,
    block,
    blocks_of,
    draw_cases,
    grid,
    grid_shapes,
    grids_up_to,
    random_sizes,
)
from pool_cases import check_pool, some_pool
from torch.nn import functional
from upsample_cases import check_upsample, some_upsample

from kadril import ops
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World

Cases = dict[int, list[Any]]
EDGES = ["zeros", "circular", "reflect", "replicate"]


class Halo(NamedTuple):
    """A halo about the blocks of a matrix."""

    partition: Sizes
    blocks: tuple[Sizes, ...]
    widths: list[tuple[int, int]]
    edge: str


@st.composite
def halos(draw: st.DrawFn, size: int) -> Halo:
    partition = draw(st.sampled_from([s for s in grids_up_to(size, 2) if s[0] * s[1] == size]))
    # No wider than what is there: torch refuses to reflect more.
    widths = [(draw(st.integers(0, 5)), draw(st.integers(0, 5))) for _ in partition]
    blocks = tuple(draw(blocks_of(draw(st.integers(6, 11)), n)) for n in partition)
    return Halo(partition, blocks, widths, draw(st.sampled_from(EDGES)))


def check_halo(world: World, case: Halo) -> None:
    P_x = grid(world, case.partition)
    x = integer_valued([sum(sizes) for sizes in case.blocks], seed=3)
    mode = "constant" if case.edge == "zeros" else case.edge
    padded = functional.pad(x[None, None], [5] * 4, mode=mode)[0, 0]
    mine = block(x, P_x, case.blocks)
    assert P_x.index is not None
    box = []
    for sizes, position, (before, after) in zip(case.blocks, P_x.index, case.widths, strict=True):
        start = 5 + sum(sizes[:position])
        box.append(slice(start - before, start + sizes[position] + after))
    got = ops.halo_exchange(mine, P_x, case.widths, edges=case.edge)
    assert torch.equal(got, padded[tuple(box)])
    y = integer_valued(got.shape, seed=8, rank=world.rank)
    exchange = partial(ops.halo_exchange, P_x=P_x, halo=case.widths, edges=case.edge)
    check_autograd_adjoint(world, exchange, mine, y)


class Move(NamedTuple):
    """A move from any blocks on one partition to any blocks on another."""

    source: Sizes
    target: Sizes
    blocks: tuple[Sizes, ...]
    new_blocks: tuple[Sizes, ...]
    dtype: torch.dtype


@st.composite
def moves(draw: st.DrawFn, size: int) -> Move:
    shapes = st.sampled_from(grids_up_to(size, draw(st.integers(1, 4))))
    source, target = draw(shapes), draw(shapes)
    sizes = [draw(st.integers(length, 9)) for length in target]
    blocks, new_blocks = (
        tuple(draw(blocks_of(each, n)) for each, n in zip(sizes, shape, strict=True))
        for shape in (source, target)
    )
    dtype = draw(st.sampled_from([torch.float64, torch.complex128]))
    return Move(source, target, blocks, new_blocks, dtype)


def check_move(world: World, case: Move) -> None:
    P_x, P_y = grid(world, case.source), grid(world, case.target)
    x = integer_valued([sum(sizes) for sizes in case.blocks], case.dtype, seed=3)
    mine = block(x, P_x, case.blocks)
    got = ops.repartition(mine, P_x, P_y)
    assert torch.equal(got, block(x, P_y)) if P_y.active else got.numel() == 0
    move = partial(ops.repartition, P_x=P_x, P_y=P_y, sizes=case.new_blocks)
    got = move(mine)
    assert torch.equal(got, block(x, P_y, case.new_blocks)) if P_y.active else got.numel() == 0
    y = integer_valued(got.shape, case.dtype, seed=5, rank=world.rank)
    check_autograd_adjoint(world, move, mine, y)


def check_norm(world: World, seed: int) -> None:
    """One of the norms, on any cut."""
    draw = random.Random(seed)
    shape = draw.choice(grid_shapes(draw.randint(2, 4), [world.size]))
    P_x = grid(world, shape)
    size = [draw.randint(4, 6), 6, *(draw.randint(4, 9) for _ in shape[2:])]
    kind = torch.nn.BatchNorm2d if len(shape) == 4 else torch.nn.BatchNorm1d
    layer, twin = draw.choice(
        [
            (kind(6, momentum=0.7), batch_norm_twin),
            (torch.nn.GroupNorm(draw.choice([1, 2, 3, 6]), 6), group_norm_twin),
            (torch.nn.LayerNorm(size[1:]), layer_norm_twin),
        ]
    )
    x = integer_valued(size, seed=seed)
    compare(P_x, randomize(layer), twin, x, random_sizes(size, P_x, draw))


Drawing = Callable[[int, int], list[Any]]
KINDS: dict[str, tuple[Drawing, Callable[[World, Any], None]]] = {
    "conv": (
        lambda size, num: draw_cases(feature_cases(size), num),
        partial(check_twin, layers=CONVOLUTIONS),
    ),
    "conv transpose": (
        lambda size, num: draw_cases(transpose_cases(size), num),
        partial(check_twin, layers=TRANSPOSED),
    ),
    "conv general": (lambda size, num: draw_cases(general_cases(size), num), check_general),
    "max pool": (
        lambda size, num: draw_cases(
            seeded(partial(some_pool, num_workers=size, is_max=True)), num
        ),
        partial(check_pool, is_max=True),
    ),
    "avg pool": (
        lambda size, num: draw_cases(
            seeded(partial(some_pool, num_workers=size, is_max=False)), num
        ),
        partial(check_pool, is_max=False),
    ),
    "norm": (lambda size, num: list(range(num)), check_norm),
    "interpolation": (
        lambda size, num: draw_cases(
            seeded(partial(some_upsample, num_workers=size, is_exact=False)), num
        ),
        partial(check_upsample, dtype=torch.float64),
    ),
    "repartition": (lambda size, num: draw_cases(moves(size), num), check_move),
    "halo": (lambda size, num: draw_cases(halos(size), num), check_halo),
}


@functools.cache
def cases_of(kind: str, size: int, num: int) -> list[Any]:
    return KINDS[kind][0](size, num)


@pytest.fixture
def few(kind: str) -> Cases:
    return {6: cases_of(kind, 6, 20)}


@pytest.fixture
def many(kind: str) -> Cases:
    return {size: cases_of(kind, size, 40) for size in (5, 6, 7, 8)}


@pytest.mark.parametrize("kind", KINDS)
@ranks(6)
def test_few_drawn_cases(world: World, kind: str, few: Cases) -> None:
    check_drawn(few[world.size], partial(KINDS[kind][1], world))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@ranks(5, 6, 7, 8, timeout=300.0)
def test_many_drawn_cases(world: World, kind: str, many: Cases) -> None:
    check_drawn(many[world.size], partial(KINDS[kind][1], world))
