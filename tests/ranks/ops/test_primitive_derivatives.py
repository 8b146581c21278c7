"""Gradients of gradients through primitives, beside plain functions of the blocks of all ranks.

Every number is a small integer, and every sum of products exact: results compare with `==`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pytest
import torch
from partition_kit import TRANSPORTS, grid, nothing

import kadril.ops
from kadril import ops
from kadril.errors import KadrilError, MismatchError
from kadril.ops.halo import widen
from kadril.partition import Partition, world_partition
from kadril.testing import integer_valued, ranks
from kadril.world import World

Blocks = list[torch.Tensor]


class PrimitiveCase(NamedTuple):
    """A primitive on two ranks, whose blocks are 3 x 4 one below the other.

    Attributes:
        function: of this rank's block.
        reference: of the blocks of both ranks.
        takes_one: whether ranks hold copies of one tensor, rather than blocks.
        gives_one: the same, for the result.
        holds: whether this rank holds anything; it gives a zero-volume tensor otherwise.
    """

    function: Callable[[torch.Tensor], torch.Tensor]
    reference: Callable[[Blocks], Blocks]
    takes_one: bool = False
    gives_one: bool = False
    holds: bool = True


def halves(x: torch.Tensor, dim: int) -> Blocks:
    return list(x.chunk(2, dim))


def padded(x: torch.Tensor, value: float = 0.0) -> Blocks:
    """One row more on both sides of each block, and two columns at the right end."""
    wide = torch.nn.functional.pad(x, (0, 2, 1, 1), value=value)
    return [wide[0:5], wide[3:8]]


def reflected(x: torch.Tensor) -> Blocks:
    wide = torch.nn.functional.pad(x[None], (0, 2, 1, 1), mode="reflect")[0]
    return [wide[0:5], wide[3:8]]


def cases(world: World) -> dict[str, PrimitiveCase]:
    """Return the cases: at least one for each name that `kadril.ops` has."""
    P_x, P_y = grid(world, (2, 1)), grid(world, (1, 2))
    one = grid(world, (1, 1))
    return {
        **along_an_axis(P_x),
        **to_other_blocks(P_x, P_y),
        **from_or_to_one(world, P_x, P_y),
        **of_copies(world, one, P_x, P_y),
        "correct_zero_volume": PrimitiveCase(ops.correct_zero_volume, lambda x: x),
    }


def along_an_axis(P_x: Partition) -> dict[str, PrimitiveCase]:
    """Return cases of collectives of the workers along an axis."""
    return {
        "all_sum_reduce": PrimitiveCase(
            lambda x: ops.all_sum_reduce(x, P_x, (0,)), lambda x: [x[0] + x[1]] * 2
        ),
        "all_max_reduce": PrimitiveCase(
            lambda x: ops.all_max_reduce(x, P_x, (0,)),
            lambda x: [torch.where(x[0] >= x[1], x[0], x[1])] * 2,
        ),
        "all_min_reduce": PrimitiveCase(
            lambda x: ops.all_min_reduce(x, P_x, (0,)),
            lambda x: [torch.where(x[0] <= x[1], x[0], x[1])] * 2,
        ),
        "all_gather": PrimitiveCase(
            lambda x: ops.all_gather(x, P_x, (0,)), lambda x: [torch.cat(x)] * 2
        ),
        "all_gather, dim 1": PrimitiveCase(
            lambda x: ops.all_gather(x, P_x, (0,), dim=1), lambda x: [torch.cat(x, 1)] * 2
        ),
        "reduce_scatter": PrimitiveCase(
            lambda x: ops.reduce_scatter(x, P_x, (0,), sizes=[2, 1]),
            lambda x: list((x[0] + x[1]).split([2, 1])),
        ),
        "reduce_scatter, dim 1": PrimitiveCase(
            lambda x: ops.reduce_scatter(x, P_x, (0,), dim=1), lambda x: halves(x[0] + x[1], 1)
        ),
        "all_to_all": PrimitiveCase(
            lambda x: ops.all_to_all(x, P_x, 0, 1, 0), lambda x: halves(torch.cat(x), 1)
        ),
    }


def to_other_blocks(P_x: Partition, P_y: Partition) -> dict[str, PrimitiveCase]:
    """Return cases of blocks that become other ones, or get halos."""
    halo = [(1, 1), (0, 2)]
    needs = [widen(before, after) for before, after in halo]
    return {
        "repartition": PrimitiveCase(
            lambda x: ops.repartition(x, P_x, P_y), lambda x: halves(torch.cat(x), 1)
        ),
        "Repartitioner": PrimitiveCase(
            ops.Repartitioner(P_x, P_y, sizes=[None, [3, 1]]),
            lambda x: list(torch.cat(x).split([3, 1], 1)),
        ),
        "halo_exchange": PrimitiveCase(
            lambda x: ops.halo_exchange(x, P_x, halo), lambda x: padded(torch.cat(x))
        ),
        "halo_exchange, reflect": PrimitiveCase(
            lambda x: ops.halo_exchange(x, P_x, halo, edges="reflect"),
            lambda x: reflected(torch.cat(x)),
        ),
        # Affine: what is beyond the edge is a constant, and has no part in derivatives.
        "HaloExchanger": PrimitiveCase(
            ops.HaloExchanger(P_x, needs, fill=5.0), lambda x: padded(torch.cat(x), 5.0)
        ),
    }


def from_or_to_one(world: World, P_x: Partition, P_y: Partition) -> dict[str, PrimitiveCase]:
    """Return cases in which one worker has the whole tensor."""
    none = torch.empty(0, dtype=torch.float64)
    return {
        "gather": PrimitiveCase(lambda x: ops.gather(x, P_x), lambda x: [torch.cat(x), none]),
        "Gatherer": PrimitiveCase(ops.Gatherer(P_x, 1), lambda x: [none, torch.cat(x)]),
        "scatter": PrimitiveCase(
            lambda x: ops.scatter(x, P_x, sizes=[[1, 2], None]),
            lambda x: list(x[0].split([1, 2])),
            holds=world.rank == 0,
        ),
        "Scatterer": PrimitiveCase(
            ops.Scatterer(P_y, 1), lambda x: halves(x[1], 1), holds=world.rank == 1
        ),
    }


def of_copies(
    world: World, one: Partition, P_x: Partition, P_y: Partition
) -> dict[str, PrimitiveCase]:
    """Return cases in which several workers hold the same tensor, or parts of one sum."""
    none = torch.empty(0, dtype=torch.float64)
    return {
        "broadcast": PrimitiveCase(
            lambda x: ops.broadcast(x, one, P_x), lambda x: [x[0], x[0]], holds=world.rank == 0
        ),
        "Broadcaster": PrimitiveCase(
            ops.Broadcaster(one, P_y), lambda x: [x[0], x[0]], holds=world.rank == 0
        ),
        "sum_reduce": PrimitiveCase(
            lambda x: ops.sum_reduce(x, P_x, one), lambda x: [x[0] + x[1], none]
        ),
        "SumReducer": PrimitiveCase(ops.SumReducer(P_y, one), lambda x: [x[0] + x[1], none]),
        "total": PrimitiveCase(
            lambda x: ops.total(x, P_x.group), lambda x: [x[0] + x[1]] * 2, gives_one=True
        ),
        "spread": PrimitiveCase(
            lambda x: ops.spread(x, P_x.group), lambda x: [x[0], x[0]], takes_one=True
        ),
    }


def on_each(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Blocks], Blocks]:
    return lambda blocks: [function(x) for x in blocks]


def weighed(blocks: Sequence[torch.Tensor], seed: int) -> torch.Tensor:
    """Inner product of tensors with constants."""
    return torch.stack([(integer_valued(x.shape, seed=seed) * x).sum() for x in blocks]).sum()


def derivatives(
    function: Callable[[Blocks], Blocks], blocks: Blocks, once: bool, once_out: bool
) -> list[Blocks]:
    """Return y, and for sum w y^4 the gradients, those of <x*, v> and those of <x**, u>.

    Args:
        function: from blocks to results.
        blocks: leaves.
        once: whether inner products of x are taken of the first block only.
        once_out: the same, for y.
    """
    count, count_out = (1 if one else None for one in (once, once_out))
    results = function(blocks)
    level = weighed([y**4 for y in results[:count_out]], seed=4)
    found = [[y.detach() for y in results]]
    for seed in (5, 6, 7):
        grads = torch.autograd.grad(level, blocks, create_graph=True, materialize_grads=True)
        found.append([grad.detach() for grad in grads])
        level = weighed(grads[:count], seed)
    return found


@ranks(2, transports=TRANSPORTS)
def test_derivatives_of_all_orders(world: World) -> None:
    """Second ones were refused; physics-informed networks and gradient penalties need them."""
    values = [integer_valued((3, 4), seed=1, rank=rank) for rank in range(2)]
    for name, case in cases(world).items():
        given = [values[0], values[0]] if case.takes_one else values
        leaves = [x.clone().requires_grad_() for x in given]
        expected = derivatives(case.reference, leaves, case.takes_one, case.gives_one)
        if case.takes_one:  # all copies get the gradient of the one
            expected[1:] = [[grads[0], grads[0]] for grads in expected[1:]]
        mine = (given[world.rank].clone() if case.holds else nothing()).requires_grad_()
        found = derivatives(on_each(case.function), [mine], False, False)
        for order, (got, want) in enumerate(zip(found, expected, strict=True)):
            wanted = want[world.rank] if case.holds or order == 0 else torch.zeros(0)
            assert torch.equal(got[0].view(-1), wanted.reshape(-1)), f"{name}, order {order}"


@ranks(2)
def test_every_primitive_has_a_case(world: World) -> None:
    """A new one is not to come without its second derivative."""
    without = {"zero_volume_tensor"}  # it takes no tensor
    assert set(kadril.ops.__all__) - without <= set(cases(world))


@ranks(2)
def test_gradgradcheck_of_a_function_of_copies(world: World) -> None:
    """Torch's own check, by finite differences: every rank runs it on copies of one tensor."""
    group = world_partition(world).group
    for name, case in cases(world).items():
        if case.takes_one or case.gives_one:
            continue  # they are a part of every function here

        def function(x: torch.Tensor, case: PrimitiveCase = case) -> torch.Tensor:
            mine = ops.spread(x, group).chunk(2)[world.rank]
            y = case.function(mine if case.holds else mine.reshape(-1)[:0])
            return ops.total(y.sin().sum(), group)

        torch.manual_seed(3)
        x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(function, [x], fast_mode=True), name


@ranks(3)
def test_a_rank_whose_loss_is_linear(world: World) -> None:
    """A constant gradient: the rank has to be there for the second derivatives of others."""
    P_x = grid(world, (3,))
    for kind in ("backward", "grad"):
        x = integer_valued((2,), seed=1, rank=world.rank).requires_grad_()
        y = ops.all_sum_reduce(x, P_x, (0,))
        loss = (y**3 if world.rank == 1 else y).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        total = sum(integer_valued((2,), seed=1, rank=rank) for rank in range(3))
        assert torch.equal(first, 3 * total**2 + 2)
        if kind == "grad":
            (second,) = torch.autograd.grad((first * (world.rank + 1)).sum(), x)
        else:
            (first * (world.rank + 1)).sum().backward()
            assert x.grad is not None
            second = x.grad
        assert torch.equal(second, 36 * total)


@ranks(2)
def test_ranks_that_do_not_agree_on_a_graph_of_gradients(world: World) -> None:
    """Found out at once, where nothing has moved: they would miss each other later."""
    P_x = grid(world, (2,))
    x = integer_valued((2,), seed=1, rank=world.rank).requires_grad_()
    y = ops.all_gather(x, P_x, (0,))
    with pytest.raises(MismatchError, match="with a graph"):
        torch.autograd.grad((y * y).sum(), x, create_graph=world.rank == 0)
    assert ops.all_gather(x, P_x, (0,)).shape == (4,)


@ranks(2)
def test_a_rank_that_leaves_out_the_second_pass(world: World) -> None:
    """An error on both, and not a wait for ever."""
    P_x = grid(world, (2,))
    x = integer_valued((2,), seed=1, rank=world.rank).requires_grad_()
    y = ops.halo_exchange(x, P_x, [(1, 1)])
    (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    goes_on = partial(ops.halo_exchange, x, P_x, [(1, 1)])
    with pytest.raises(KadrilError):
        first.sum().backward() if world.rank == 0 else goes_on()
    assert ops.all_sum_reduce(x, P_x, (0,)).shape == (2,)
