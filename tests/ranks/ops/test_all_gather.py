"""All-gather and reduce-scatter: right values over any axes and dims, each other's adjoint."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import strategies as st
from partition_kit import TRANSPORTS, block, draw_cases, grid, nothing, whole

from kadril import ops
from kadril.errors import MismatchError
from kadril.partition import balanced_sizes
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World


@ranks(4, transports=TRANSPORTS)
def test_blocks_put_together_over_every_choice_of_axes(world: World) -> None:
    P_x = grid(world, (2, 2))
    x = whole((5, 7))
    mine = block(x, P_x)
    assert P_x.index is not None
    row, column = P_x.index
    rows, columns = torch.split(x, [3, 2])[row], torch.split(x, [4, 3], dim=1)[column]
    assert torch.equal(ops.all_gather(mine, P_x, (0,)), columns)
    assert torch.equal(ops.all_gather(mine, P_x, 1), rows)
    assert torch.equal(ops.all_gather(mine, P_x, axes_keep=(0,)), rows)
    assert torch.equal(ops.all_gather(mine, P_x, (0, 1)), x)
    for axes in [(0,), (1,), (0, 1), ()]:
        gather = partial(ops.all_gather, P_x=P_x, axes_gather=axes)
        got = gather(mine)
        check_autograd_adjoint(
            world, gather, mine, integer_valued(got.shape, seed=5, rank=world.rank)
        )
        if axes != (0, 1):
            scatter = partial(ops.reduce_scatter, P_x=P_x, axes_scatter=axes)
            y = integer_valued(got.shape, seed=6, rank=world.rank)
            check_autograd_adjoint(
                world, scatter, y, integer_valued(mine.shape, seed=7, rank=world.rank)
            )


@ranks(4)
def test_the_sum_in_blocks(world: World) -> None:
    P_x = grid(world, (2, 2))
    parts = [integer_valued((5, 7), seed=1, rank=rank) for rank in range(4)]
    assert P_x.index is not None
    row, column = P_x.index
    mine = parts[world.rank]
    got = ops.reduce_scatter(mine, P_x, (0, 1))
    assert torch.equal(got, block(torch.stack(parts).sum(0), P_x))
    line = parts[2 * row] + parts[2 * row + 1]
    got = ops.reduce_scatter(mine, P_x, axes_keep=(0,), dim=0, sizes=[1, 4])
    assert torch.equal(got, torch.split(line, [1, 4])[column])
    got = ops.reduce_scatter(mine, P_x, (0, 1), dim=-1)
    assert torch.equal(got, torch.split(sum(parts), balanced_sizes(7, 4), dim=1)[world.rank])


CASES = draw_cases(
    st.tuples(
        st.lists(st.integers(0, 4), min_size=3, max_size=3),  # block sizes in line
        st.lists(st.integers(0, 3), min_size=0, max_size=2),  # sizes before the dim
        st.lists(st.integers(0, 3), min_size=0, max_size=2),  # and after
        st.sampled_from([torch.float64, torch.complex128, torch.float32]),
    ),
    60,
)


@ranks(3)
def test_blocks_of_any_sizes_along_any_dim(world: World) -> None:
    P_x = grid(world, (3,))
    for sizes, before, after, dtype in CASES:
        dim = len(before)
        shapes = [(*before, size, *after) for size in sizes]
        parts = [integer_valued(shape, dtype, 2, rank) for rank, shape in enumerate(shapes)]
        gather = partial(ops.all_gather, P_x=P_x, axes_gather=0, dim=dim)
        got = gather(parts[world.rank])
        assert torch.equal(got, torch.cat(parts, dim))
        y = integer_valued(got.shape, dtype, 3, world.rank)
        check_autograd_adjoint(world, gather, parts[world.rank], y)
        scatter = partial(ops.reduce_scatter, P_x=P_x, axes_scatter=0, dim=dim, sizes=sizes)
        everyones = [integer_valued(got.shape, dtype, 3, rank) for rank in range(3)]
        assert torch.equal(scatter(y), torch.split(sum(everyones), sizes, dim)[world.rank])
        check_autograd_adjoint(world, scatter, y, parts[world.rank])


@ranks(4)
def test_workers_of_a_part_of_the_world(world: World) -> None:
    P_x = grid(world, (3, 1))
    x = torch.ones(2, 2, requires_grad=True) if P_x.active else nothing(torch.float32)
    got = ops.all_gather(x, P_x, 0)
    assert got.shape == ((6, 2) if P_x.active else (0,))
    assert got.data_ptr() != x.data_ptr() or not P_x.active
    got = ops.reduce_scatter(x, P_x, 0)
    assert got.shape == ((int(world.rank < 2), 2) if P_x.active else (0,))
    alone = grid(world, (1, 1))
    if alone.active:
        same = ops.all_gather(x, alone, (0, 1))
        assert torch.equal(same, x)
        assert same.data_ptr() != x.data_ptr()


@ranks(2)
def test_what_does_not_fit(world: World) -> None:
    P_x = grid(world, (2, 1))
    with pytest.raises(MismatchError, match=r"but for dim 0.*\[2, 4\] on rank 1"):
        ops.all_gather(torch.zeros(2, 3 + world.rank), P_x, 0)
    with pytest.raises(MismatchError, match="different shapes"):
        ops.reduce_scatter(torch.zeros(2, 3 + world.rank), P_x, 0)
    with pytest.raises(MismatchError, match="dtypes or numbers of dims"):
        ops.all_gather(torch.zeros([2] * (1 + world.rank)), P_x, 0, dim=1)
    with pytest.raises(ValueError, match="no dim 3"):
        ops.all_gather(torch.zeros(2, 2), P_x, 0, dim=3)
    with pytest.raises(ValueError, match="no axis 2"):
        ops.all_gather(torch.zeros(2, 2), P_x, 2)
    with pytest.raises(ValueError, match="either"):
        ops.reduce_scatter(torch.zeros(2, 2), P_x)
    with pytest.raises(ValueError, match=r"sizes \[1, 2\] do not make up the 2 elements of dim 0"):
        ops.reduce_scatter(torch.zeros(2, 2), P_x, 0, sizes=[1, 2])
    with pytest.raises(ValueError, match="one axis or dim"):
        ops.reduce_scatter(torch.zeros(2, 2), P_x, (0, 1), sizes=[1, 1])
    assert ops.all_gather(torch.zeros(2, 2), P_x, 0).shape == (4, 2)
