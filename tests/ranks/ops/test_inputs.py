"""Inputs of primitives: any strides, dtypes and sizes, and gradients wanted here or there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from partition_kit import TRANSPORTS, block, grid, nothing, whole

from kadril import ops
from kadril.errors import MismatchError, UnsupportedError
from kadril.partition import Partition, world_partition
from kadril.testing import integer_valued, ranks
from kadril.world import World

Function = Callable[[torch.Tensor], torch.Tensor]


def every_primitive(world: World) -> dict[str, Function]:
    """One of each, for blocks of 3 x 4 on a partition of 2 x 1."""
    P_x, P_y = grid(world, (2, 1)), grid(world, (1, 2))
    one = grid(world, (1, 1))
    return {
        "all_sum_reduce": lambda x: ops.all_sum_reduce(x, P_x, (0,)),
        "all_max_reduce": lambda x: ops.all_max_reduce(x, P_x, (0,)),
        "all_gather": lambda x: ops.all_gather(x, P_x, (0,)),
        "all_gather dim 1": lambda x: ops.all_gather(x, P_x, (0,), dim=1),
        "reduce_scatter": lambda x: ops.reduce_scatter(x, P_x, (0,)),
        "reduce_scatter dim 1": lambda x: ops.reduce_scatter(x, P_x, (0,), dim=1),
        "all_to_all": lambda x: ops.all_to_all(x, P_x, 0, 1, 0),
        "repartition": lambda x: ops.repartition(x, P_x, P_y),
        "halo_exchange": lambda x: ops.halo_exchange(x, P_x, [(1, 1), (0, 2)]),
        "halo_exchange reflect": lambda x: ops.halo_exchange(
            x, P_x, [(1, 1), (0, 2)], edges="reflect"
        ),
        "gather": lambda x: ops.gather(x, P_x),
        "sum_reduce": lambda x: ops.sum_reduce(x, P_x, one),
        "total": lambda x: ops.total(x, P_x.group),
        "spread": lambda x: ops.spread(x, P_x.group),
    }


def run(function: Function, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Result, and gradient of a sum with weights that differ from element to element."""
    x = x.detach().requires_grad_()
    y = function(x)
    weights = integer_valued(y.shape, y.dtype, seed=4)
    (y * weights).sum().real.backward()
    assert x.grad is not None
    return y.detach(), x.grad


@ranks(2, transports=TRANSPORTS)
def test_any_strides(world: World) -> None:
    """The same result, whatever the memory looks like."""
    plain = integer_valued((3, 4), seed=1, rank=world.rank)
    wide = torch.zeros(6, 8, dtype=plain.dtype)
    wide[::2, ::2] = plain
    for name, function in every_primitive(world).items():
        expected = run(function, plain)
        for other in (plain.t().contiguous().t(), wide[::2, ::2]):
            assert not other.is_contiguous()
            got = run(function, other)
            assert torch.equal(got[0], expected[0]), name
            assert torch.equal(got[1], expected[1]), name
        # The gradient of a sum is one number in the strides of many.
        x = plain.clone().requires_grad_()
        y = function(x)
        y.sum().backward()
        spread_out = x.grad
        x.grad = None
        function(x).backward(torch.ones_like(y))
        assert spread_out is not None
        assert x.grad is not None
        assert torch.equal(spread_out, x.grad), name


@ranks(2)
def test_lazily_conjugated_and_negated(world: World) -> None:
    """Torch only marks such tensors; their memory holds other values."""
    x = integer_valued((3, 4), torch.complex128, seed=1, rank=world.rank)
    for name, function in every_primitive(world).items():
        if name == "all_max_reduce":
            continue
        assert x.conj().is_conj()
        assert torch.equal(function(x.conj()), function(x.conj().resolve_conj())), name
        y = function(x.clone().requires_grad_())
        z = integer_valued(y.shape, y.dtype, seed=2)
        grads = []
        for grad in (z.conj(), z.conj().resolve_conj()):
            leaf = x.clone().requires_grad_()
            function(leaf).backward(grad)
            assert leaf.grad is not None
            grads.append(leaf.grad.resolve_conj())
        assert torch.equal(*grads), name
    negated = x.conj().imag
    assert negated.is_neg()
    for name, function in every_primitive(world).items():
        assert torch.equal(function(negated), function(negated.resolve_neg())), name


@ranks(2)
def test_every_dtype(world: World) -> None:
    P_x, P_y = grid(world, (2, 1)), grid(world, (1, 2))
    for dtype in (torch.int64, torch.uint8, torch.bool, torch.float16, torch.bfloat16):
        x = whole((6, 4), dtype)
        mine = block(x, P_x)
        got = ops.repartition(mine, P_x, P_y)
        assert torch.equal(got, block(x, P_y))
        assert torch.equal(ops.all_gather(mine, P_x, 0), x)
        halo = ops.halo_exchange(mine, P_x, [(1, 1), (0, 0)])
        padded = torch.cat([x[:1] * 0, x, x[:1] * 0])
        assert torch.equal(halo, padded[3 * world.rank : 3 * world.rank + 5])
        assert not halo.requires_grad
        one = grid(world, (1, 1))
        everywhere = ops.broadcast(x if one.active else nothing(dtype), one, P_y)
        assert torch.equal(everywhere, x)
        assert not everywhere.requires_grad
    counts = torch.arange(3)
    assert ops.all_sum_reduce(counts, P_x, (0,)).tolist() == [0, 2, 4]
    with pytest.raises(UnsupportedError, match="dtype that transports do not move"):
        ops.repartition(torch.zeros(3, 4, dtype=torch.float8_e5m2), P_x, P_y)
    with pytest.raises(ValueError, match=r"beyond the edge is -inf, which torch.int64"):
        ops.HaloExchanger(P_x, [None, None], fill=float("-inf"))(counts.view(1, 3))


@ranks(2, transports=TRANSPORTS)
def test_gradients_wanted_by_one_rank_only(world: World) -> None:
    """The other rank has to be in the backward pass as well, or the first one waits for ever."""
    values = integer_valued((3, 4), seed=1, rank=world.rank)
    for name, function in every_primitive(world).items():
        if name in ("total", "spread"):  # copies of one tensor: they want gradients alike
            continue
        expected = run(function, values)[1]
        for wants in range(2):
            x = values.clone().requires_grad_(world.rank == wants)
            y = function(x)
            assert y.requires_grad, name
            (y * integer_valued(y.shape, seed=4)).sum().backward()
            if world.rank == wants:
                assert x.grad is not None
                assert torch.equal(x.grad, expected), name
            else:
                assert x.grad is None


@ranks(2)
def test_gradients_wanted_by_nobody(world: World) -> None:
    x = integer_valued((3, 4), seed=1, rank=world.rank)
    one, P_y = grid(world, (1, 1)), grid(world, (1, 2))
    for name, function in every_primitive(world).items():
        assert not function(x).requires_grad, name
        with torch.no_grad():
            assert not function(x.clone().requires_grad_()).requires_grad, name
    got = ops.broadcast(x if one.active else nothing(), one, P_y)
    assert not got.requires_grad
    with torch.set_grad_enabled(world.rank == 0):
        with pytest.raises(MismatchError, match=r"ranks \[0\] record a graph"):
            ops.repartition(x, grid(world, (2, 1)), P_y)
        with pytest.raises(MismatchError):
            ops.all_sum_reduce(x, P_y, (1,))
    assert ops.all_sum_reduce(x, P_y, (1,)).shape == x.shape


@ranks(3)
def test_blocks_without_elements(world: World) -> None:
    P_x = grid(world, (3, 1))
    x = whole((9, 2))
    sizes = [[0, 7, 2], None]
    mine = block(x, P_x, sizes).requires_grad_()
    got = ops.halo_exchange(mine, P_x, [(2, 1), (0, 0)])
    padded = torch.cat([torch.zeros(2, 2, dtype=x.dtype), x, torch.zeros(1, 2, dtype=x.dtype)])
    start = [0, 0, 7][world.rank]
    assert torch.equal(got, padded[start : start + mine.shape[0] + 3])
    got.sum().backward()
    assert mine.grad is not None
    assert mine.grad.shape == mine.shape
    assert ops.halo_exchange(mine, P_x, [(0, 0), (1, 1)]).shape == (mine.shape[0], 4)
    got = ops.repartition(mine, P_x, P_x)
    assert torch.equal(got, block(x, P_x))
    empty = torch.zeros(0, 4, requires_grad=True)
    P_y = grid(world, (1, 3))
    for each in (
        ops.all_sum_reduce(empty, P_x, (0,)),
        ops.all_gather(empty, P_x, 0),
        ops.reduce_scatter(empty, P_x, 0),
        ops.all_max_reduce(empty, P_x, (0,)),
    ):
        assert each.shape == (0, 4)
        each.sum().backward()
    assert ops.repartition(empty[:, : 2 - world.rank], P_y, P_y).shape == (0, 1)


@ranks(2)
def test_single_numbers(world: World) -> None:
    P_x = grid(world, (2,))
    x = torch.tensor(float(1 + world.rank), requires_grad=True)
    total = ops.all_sum_reduce(x, P_x, (0,))
    assert total.shape == ()
    total.backward()
    assert x.grad is not None
    assert (total.item(), x.grad.item()) == (3.0, 2.0)
    assert ops.total(x, P_x.group).item() == 3.0
    one = grid(world, (1,))
    y = ops.broadcast(x if one.active else nothing(torch.float32), one, P_x)
    assert (y.shape, y.item()) == ((), 1.0)
    assert ops.sum_reduce(x, P_x, one).tolist() == (3.0 if one.active else [])
    point = world_partition(world).create_cartesian_topology_partition([])
    other = world_partition(world).create_partition_inclusive([1])
    there = other.create_cartesian_topology_partition([])
    moved = ops.repartition(x if point.active else nothing(torch.float32), point, there)
    assert moved.tolist() == (1.0 if there.active else [])
    with pytest.raises(ValueError, match="no dim 0"):
        ops.all_gather(x, P_x, 0)


@ranks(3, transports=TRANSPORTS)
def test_ranks_without_a_block_stay_in_the_graph(world: World) -> None:
    """A rank may hold something before and after, and nothing in between."""
    everyone = grid(world, (3, 1))
    in_between = grid(world, (1, 2))
    x = whole((6, 4))
    mine = block(x, everyone).requires_grad_()
    y = ops.repartition(mine, everyone, in_between)
    assert y.requires_grad
    z = ops.repartition(y * 2, in_between, everyone)
    assert torch.equal(z, 2 * block(x, everyone))
    (z * block(x, everyone)).sum().backward()
    assert mine.grad is not None
    assert torch.equal(mine.grad, 2 * block(x, everyone))
    one = grid(world, (1, 1))
    mine.grad = None
    summed = ops.sum_reduce(mine, everyone, one)
    back = ops.broadcast(summed, one, everyone)
    back.sum().backward()
    assert torch.equal(mine.grad, torch.full((2, 4), 3.0))  # type: ignore[arg-type]
    loss = ops.correct_zero_volume(ops.sum_reduce(mine, everyone, one).sum())
    loss.backward()


def check_refused(world: World, P_x: Partition, function: Function, match: str) -> None:
    """All ranks raise, and the partition works afterwards."""
    with pytest.raises((ValueError, MismatchError), match=match):
        function(torch.zeros(2, 2))
    assert ops.all_sum_reduce(torch.ones(1), world_partition(world), (0,)).item() == world.size


@ranks(3)
def test_data_where_there_should_be_none(world: World) -> None:
    few, all_of_them = grid(world, (2, 1)), grid(world, (3, 1))
    match = r"rank 2 holds a tensor of shape \[2, 2\]"
    check_refused(world, few, lambda x: ops.repartition(x, few, all_of_them), match)
    one = grid(world, (1, 1))
    match = r"rank 1 holds a tensor of shape \[2, 2\]"
    check_refused(world, one, lambda x: ops.broadcast(x, one, all_of_them), match)
    if not few.active:
        for function in (
            lambda x: ops.all_sum_reduce(x, few, (0,)),
            lambda x: ops.all_gather(x, few, 0),
            lambda x: ops.halo_exchange(x, few, [(1, 1), (0, 0)]),
            lambda x: ops.all_to_all(x, few, 0, 0, 1),
            lambda x: ops.sum_reduce(x, few, one),
        ):
            with pytest.raises(ValueError, match=r"not in the partition.*zero_volume_tensor"):
                function(torch.zeros(2, 2))


@ranks(3)
def test_blocks_that_differ_are_refused_by_all(world: World) -> None:
    """Ranks that hold no block refuse them too: they would wait for one."""
    few, everyone = grid(world, (2, 1)), grid(world, (3, 1))
    dtype = torch.float64 if world.rank == 1 else torch.float32
    with pytest.raises(MismatchError, match=r"rank 1: torch.float64"):
        ops.repartition(torch.zeros(2, 2, dtype=dtype) if few.active else nothing(), few, everyone)
    one = grid(world, (1, 1))
    with pytest.raises(MismatchError, match=r"different shapes.*\[2, 3\] on rank 1"):
        ops.sum_reduce(torch.zeros(2, 3 if world.rank == 1 else 2), everyone, one)
    with pytest.raises(ValueError, match="may have 12 dims"):
        ops.repartition(torch.zeros([1] * 13), everyone, everyone)
    with pytest.raises(ValueError, match="different numbers of axes"):
        ops.repartition(torch.zeros(1), everyone, grid(world, (3,)))
    with pytest.raises(ValueError, match="cannot stand for"):
        ops.broadcast(torch.zeros(1, 1), few, everyone)


@ranks(4)
def test_axes_in_reverse_order(world: World) -> None:
    P_x = grid(world, (2, 2))
    x = torch.full((1, 1), float(world.rank))
    assert ops.broadcast(x, P_x, P_x).item() == world.rank
    assert ops.broadcast(x, P_x, P_x, transpose_src=True).item() == [0, 2, 1, 3][world.rank]
    assert ops.sum_reduce(x, P_x, P_x, transpose_dest=True).item() == [0, 2, 1, 3][world.rank]
    row = grid(world, (1, 2))
    given = x if row.active else nothing(torch.float32)
    assert ops.broadcast(given, row, P_x).item() == [0, 1, 0, 1][world.rank]
    assert ops.broadcast(given, row, P_x, transpose_dest=True).item() == [0, 0, 1, 1][world.rank]


@ranks(2)
def test_any_strides_of_large_blocks(world: World) -> None:
    """Long runs of elements may go as they lie: the result must be that of a contiguous block."""
    P_x, P_y = grid(world, (2, 1, 1)), grid(world, (1, 2, 1))
    plain = integer_valued((4, 6, 512), seed=1, rank=world.rank)
    others = [
        plain.transpose(0, 1).contiguous().transpose(0, 1),
        plain.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        torch.cat([plain, plain], dim=1)[:, 6:],
    ]
    moves: list[Function] = [
        lambda x: ops.repartition(x, P_x, P_y),
        lambda x: ops.halo_exchange(x, P_x, [(2, 1), (1, 0), (0, 0)], periodic=True),
    ]
    for function in moves:
        expected = run(function, plain)
        for other in others:
            got = run(function, other)
            assert torch.equal(got[0], expected[0])
            assert torch.equal(got[1], expected[1])
        rows = plain[:1].expand(4, 6, 512)
        assert torch.equal(function(rows), function(rows.contiguous()))
        x = plain.clone().requires_grad_()
        y = function(x)
        y.backward(torch.arange(512.0, dtype=y.dtype).expand(y.shape))
        assert x.grad is not None
        expanded, x.grad = x.grad, None
        function(x).backward(torch.arange(512.0, dtype=y.dtype).expand(y.shape).contiguous())
        assert torch.equal(expanded, x.grad)
