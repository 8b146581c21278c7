"""Halo exchange and repartition: right values, exact adjoints, any layout."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from partition_kit import TRANSPORTS, block, grid, whole

from kadril import ops
from kadril.errors import MismatchError
from kadril.partition import balanced_intervals, world_partition
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World


@ranks(4, transports=[*TRANSPORTS, "tiered"])
def test_repartition_of_any_layout(world: World) -> None:
    x = whole((7, 6, 5))
    layouts = [(1, 1, 1), (4, 1, 1), (1, 2, 2), (2, 2, 1), (1, 1, 4), (1, 3, 1)]
    for source, target in itertools.product(layouts, layouts):
        P_x, P_y = grid(world, source), grid(world, target)
        mine = block(x, P_x, [None] * 3)
        got = ops.repartition(mine, P_x, P_y)
        if P_y.active:
            assert torch.equal(got, block(x, P_y, [None] * 3))
        else:
            assert got.numel() == 0
        # Ranks without a block have a tensor all the same: it takes them to the backward pass.
        y = integer_valued(got.shape, seed=5, rank=world.rank)
        check_autograd_adjoint(world, partial(ops.repartition, P_x=P_x, P_y=P_y), mine, y)


@ranks(3)
def test_repartition_of_unbalanced_blocks(world: World) -> None:
    x = whole((9, 4), torch.complex128)
    P_x, P_y = grid(world, (3, 1)), grid(world, (1, 3))
    sizes = [[0, 7, 2], None]
    got = ops.repartition(block(x, P_x, sizes), P_x, P_y, sizes=[None, [1, 0, 3]])
    assert torch.equal(got, block(x, P_y, [None, [1, 0, 3]]))


@pytest.mark.parametrize("periodic", [False, True])
@ranks(1, 4, transports=TRANSPORTS)
def test_halo_of_any_width(world: World, periodic: bool) -> None:
    """Widths beyond the neighbour's block gave silently wrong numbers elsewhere."""
    shape = (2, 2) if world.size == 4 else (1, 1)
    P_x = grid(world, shape)
    x = whole((5, 6))
    tiled = x.repeat(5, 5) if periodic else torch.zeros(25, 30, dtype=x.dtype)
    if not periodic:
        tiled[10:15, 12:18] = x
    assert P_x.index is not None
    rows = balanced_intervals(5, shape[0])[P_x.index[0]]
    columns = balanced_intervals(6, shape[1])[P_x.index[1]]
    for before, after in [(0, 0), (1, 1), (2, 0), (0, 3), (4, 5), (-1, 1), (7, 9)]:
        halo = [(before, after), (after, before)]
        mine = block(x, P_x, [None, None])
        got = ops.halo_exchange(mine, P_x, halo, periodic=periodic)
        expected = tiled[
            10 + rows.start - before : 10 + rows.stop + after,
            12 + columns.start - after : 12 + columns.stop + before,
        ]
        assert torch.equal(got, expected), (before, after)
        check_autograd_adjoint(
            world,
            lambda z, halo=halo: ops.halo_exchange(z, P_x, halo, periodic=periodic),
            mine,
            integer_valued(got.shape, seed=8, rank=world.rank),
        )


@ranks(3)
def test_ranks_of_the_world_in_errors(world: World) -> None:
    """The odd one is rank 2, and was called rank 1: its position in the partition."""
    P_x = grid(world, (2, 1), first=1)
    if P_x.active:
        with pytest.raises(MismatchError, match=r"dim 1.*have 5 and \(rank 2\) 6 elements"):
            ops.halo_exchange(torch.zeros(3, 4 + world.rank), P_x, [(1, 1), (0, 0)])


@ranks(2)
def test_blocks_that_do_not_fit(world: World) -> None:
    P_x = grid(world, (2, 1))
    x = torch.zeros(3, 4 + world.rank)
    with pytest.raises(MismatchError, match=r"dim 1.*position 0"):
        ops.halo_exchange(x, P_x, [(1, 1), (0, 0)])
    other = torch.zeros(3, 4, dtype=torch.float64 if world.rank else torch.float32)
    with pytest.raises(MismatchError, match="dtypes"):
        ops.halo_exchange(other, P_x, [(1, 1), (0, 0)])
    with pytest.raises(ValueError, match="nothing is left of dim 0"):
        ops.halo_exchange(torch.zeros(3, 4), P_x, [(-2, -1), (0, 0)])
    with pytest.raises(ValueError, match="one axis for each dim"):
        ops.halo_exchange(torch.zeros(3), P_x, [(1, 1), (0, 0)])
    assert ops.halo_exchange(torch.ones(3, 4), P_x, [(1, 1), (0, 0)]).shape == (5, 4)


@ranks(4, transports=[*TRANSPORTS, "tiered"])
def test_broadcast_and_sum_reduce(world: World) -> None:
    for few, many in [((1, 1), (2, 2)), ((1, 2), (2, 2)), ((2, 1), (2, 2)), ((2,), (2, 2))]:
        P_x, P_y = grid(world, few), grid(world, many)
        held = integer_valued((3, 2), seed=1, rank=world.rank)
        x = held if P_x.active else ops.zero_volume_tensor(dtype=torch.float64)
        y = integer_valued((3, 2), seed=2, rank=world.rank)
        check_autograd_adjoint(world, partial(ops.broadcast, P_x=P_x, P_y=P_y), x, y)
        got = ops.sum_reduce(y, P_y, P_x)
        x = held if P_x.active else got.detach()
        check_autograd_adjoint(world, partial(ops.sum_reduce, P_x=P_y, P_y=P_x), y, x)


@ranks(4)
def test_broadcast_between_partitions_that_share_a_part_of_their_ranks(world: World) -> None:
    everyone = world_partition(world)
    P_x = everyone.create_partition_inclusive([2]).create_cartesian_topology_partition([1, 1])
    P_y = everyone.create_partition_inclusive([3, 0, 2])
    P_y = P_y.create_cartesian_topology_partition([3, 1])
    x = torch.full((2, 2), 7.0) if P_x.active else ops.zero_volume_tensor()
    got = ops.broadcast(x, P_x, P_y)
    assert got.tolist() == ([[7.0, 7.0]] * 2 if P_y.active else [])
    apart = everyone.create_partition_inclusive([1, 3]).create_cartesian_topology_partition([2, 1])
    got = ops.broadcast(x, P_x, apart)
    if apart.active:
        assert got.tolist() == [[7.0, 7.0]] * 2
    else:
        assert got.shape == ((2, 0) if P_x.active else (0,))


@ranks(4, transports=TRANSPORTS)
def test_all_sum_reduce(world: World) -> None:
    P_x = grid(world, (2, 2))
    x = integer_valued((3,), seed=1, rank=world.rank)
    assert P_x.index is not None
    everyone = [integer_valued((3,), seed=1, rank=rank) for rank in range(4)]
    row, column = P_x.index
    assert torch.equal(ops.all_sum_reduce(x, P_x, (0,)), everyone[column] + everyone[2 + column])
    assert torch.equal(
        ops.all_sum_reduce(x, P_x, axes_keep=(0,)), everyone[2 * row] + everyone[2 * row + 1]
    )
    assert torch.equal(ops.all_sum_reduce(x, P_x, (0, 1)), torch.stack(everyone).sum(0))
    same = ops.all_sum_reduce(x, P_x, ())
    assert torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr()
    y = integer_valued((3,), seed=2, rank=world.rank)
    check_autograd_adjoint(world, partial(ops.all_sum_reduce, P_x=P_x, axes_reduce=(1,)), x, y)
    with pytest.raises(ValueError, match="either"):
        ops.all_sum_reduce(x, P_x)
    with pytest.raises(ValueError, match="no axis 2"):
        ops.all_sum_reduce(x, P_x, (2,))
