"""Moves that were planned for what there was: they follow what there is, on all ranks alike."""

from __future__ import annotations

import copy

import pytest
import torch
from partition_kit import TRANSPORTS, block, grid, whole

from kadril import nn, ops
from kadril.errors import MismatchError
from kadril.testing import integer_valued, ranks
from kadril.world import World


@ranks(3, transports=TRANSPORTS)
def test_one_module_follows_the_blocks(world: World) -> None:
    """The block of one rank changes while the others' stay, and comes back again."""
    P_x = grid(world, (3, 1))
    exchange = nn.HaloExchange(P_x, [(1, 1), (0, 0)])
    for rows, columns, dtype in [
        ([2, 2, 2], 3, torch.float64),
        ([2, 2, 2], 3, torch.float64),
        ([2, 5, 2], 3, torch.float64),
        ([2, 2, 2], 3, torch.float64),
        ([2, 2, 2], 3, torch.int32),
        ([2, 2, 2], 2000, torch.float64),
        ([2, 2, 4], 2000, torch.float64),
    ]:
        x = whole((sum(rows), columns), dtype)
        y = exchange(block(x, P_x, [rows, None]))
        padded = torch.zeros(sum(rows) + 2, columns, dtype=dtype)
        padded[1:-1] = x
        start = sum(rows[: world.rank])
        assert torch.equal(y, padded[start : start + rows[world.rank] + 2])


@ranks(2)
def test_whether_gradients_are_wanted_may_change(world: World) -> None:
    """One rank alone may change it: the other one is there for the backward pass then."""
    P_x = grid(world, (2, 1))
    exchange = nn.HaloExchange(P_x, [(1, 1), (0, 0)])
    add = nn.AllSumReduce(P_x, (0,))
    for wanted in [(), (0,), (0, 1), (1,), ()]:
        for operation, factor in ((exchange, 1), (add, 2)):
            x = integer_valued((3, 4), seed=1, rank=world.rank)
            x.requires_grad_(world.rank in wanted)
            y = operation(x)
            assert y.requires_grad == bool(wanted)
            if wanted:
                y.sum().backward()
            if not x.requires_grad:
                assert x.grad is None
                continue
            expected = torch.full((3, 4), float(factor), dtype=x.dtype)
            if operation is exchange:  # this row is in the other rank's result too
                expected[-1 if world.rank == 0 else 0] = 2
            assert x.grad is not None
            assert torch.equal(x.grad, expected)


@ranks(2)
def test_one_rank_without_a_graph_is_refused(world: World) -> None:
    P_x = grid(world, (2, 1))
    x = torch.ones(2, 3, requires_grad=True)
    for operation in (nn.HaloExchange(P_x, [(1, 1), (0, 0)]), nn.AllSumReduce(P_x, (0,))):
        operation(x)
        with torch.set_grad_enabled(world.rank == 0), pytest.raises(MismatchError):
            operation(x)
        assert operation(x).requires_grad  # and the group can be used


@ranks(2, transports=TRANSPORTS)
def test_tensors_of_any_strides(world: World) -> None:
    """Boxes are sent from where they lie: transposed, cut out, every other element."""
    P_x = grid(world, (1, 2))
    x = whole((6, 8))
    padded = torch.zeros(6, 12, dtype=x.dtype)
    padded[:, 2:-2] = x
    mine = block(x, P_x)
    spread = torch.zeros(13, 17, dtype=x.dtype)
    spread[1::2, 1:9:2] = mine
    for given in (mine, mine.T.contiguous().T, spread[1::2, 1:9:2]):
        y = ops.halo_exchange(given, P_x, [(0, 0), (2, 2)])
        assert torch.equal(y, padded[:, 4 * world.rank : 4 * world.rank + 8])
        assert y.is_contiguous()


@ranks(2, 3)
def test_one_exchange_of_tensors_that_lie_otherwise_each_time(world: World) -> None:
    """Places of boxes are kept from call to call; they must not be used for other tensors."""
    P_x = grid(world, (1, world.size))
    exchange = nn.HaloExchange(P_x, [(0, 0), (2, 2)])
    for turn in range(6):
        for width in (4, 6):
            x = whole((6, width * world.size)) + turn
            padded = torch.zeros(6, width * world.size + 4, dtype=x.dtype)
            padded[:, 2:-2] = x
            expected = padded[:, width * world.rank : width * (world.rank + 1) + 4]
            mine = block(x, P_x)
            apart = torch.zeros(6, 3 * width, dtype=x.dtype)
            apart[:, ::3] = mine
            graph = mine.clone().requires_grad_()
            # The same layout twice in a row, in other memory, and others in between.
            for given in (mine, mine.clone(), apart[:, ::3], mine, graph, mine.T.contiguous().T):
                y = exchange(given)
                assert torch.equal(y, expected), (turn, width, given.stride())
                assert y.requires_grad == given.requires_grad


@ranks(2)
def test_lazily_conjugated_tensors(world: World) -> None:
    P_x = grid(world, (2,))
    x = whole((6,), torch.complex128) * (1 + 2j)
    mine = block(x, P_x)
    y = ops.halo_exchange(mine.conj(), P_x, [(1, 1)], periodic=True)
    assert torch.equal(y, x.conj().roll(1 - 3 * world.rank)[:5].resolve_conj())
    assert torch.equal(ops.all_sum_reduce(mine.conj(), P_x, [0]), (x[:3] + x[3:]).conj())
    turned = mine.conj().imag  # negated lazily
    assert torch.equal(ops.all_sum_reduce(turned, P_x, [0]), -(x[:3] + x[3:]).imag)


@ranks(2)
def test_a_copy_of_a_module_that_has_moved(world: World) -> None:
    P_x, P_y = grid(world, (2, 1)), grid(world, (1, 2))
    x = whole((4, 6))
    for module in (nn.HaloExchange(P_x, [(1, 1), (0, 0)]), nn.Repartition(P_x, P_y)):
        y = module(block(x, P_x))
        assert torch.equal(copy.deepcopy(module)(block(x, P_x)), y)


@ranks(2)
def test_derivatives_of_other_kinds_are_refused_by_torch(world: World) -> None:
    """Functions that communicate cannot be transformed by `torch.func`."""
    P_x = grid(world, (2,))
    add = nn.AllSumReduce(P_x, (0,))
    # Which of its own calls torch refuses first depends on the transport.
    with pytest.raises(RuntimeError, match=r"functorch|doesn't have storage"):
        torch.func.grad(lambda x: add(x).sum())(torch.ones(3))
