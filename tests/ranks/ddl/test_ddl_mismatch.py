"""Learners that reduce different parameters: an error on all of them, where DDL waits for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kadril
import kadril.ddl as ddl
from kadril.errors import MismatchError
from kadril.testing import ranks
from kadril.world import World

with_peers = ranks(2, 3, transports=("shm", "mpi:openmpi"))
MODES = ("n", "m", "p")


def check(world: World, usual: Callable[[], object], odd: Callable[[], object], text: str) -> None:
    """Let the last learner call something else; all are told, and the next call works."""
    with pytest.raises(MismatchError) as caught:
        (odd if world.rank == world.size - 1 else usual)()
    message = str(caught.value).replace(f"ank {world.size - 1}", "ank -1")
    assert text in message
    assert sorted(caught.value.calls) == list(range(world.size))
    usual()


def some(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.ones(shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("mode", MODES)
@with_peers
def test_the_parameter_is_named_with_both_sides(world: World, mode: str) -> None:
    ddl.init(1, f"-mode {mode}")
    usual = some((3,), (4, 5))
    check(
        world,
        lambda: ddl.all_reduce_n(usual),
        lambda: ddl.all_reduce_n(some((3,), (5, 4))),
        "learners reduce different parameters. Parameter 1 is float32[4, 5] on rank 0 and"
        " float32[5, 4] on rank -1.",
    )
    check(
        world,
        lambda: ddl.all_reduce_n(usual),
        lambda: ddl.all_reduce_n([usual[0], usual[1].double()]),
        "Parameter 1 is float32[4, 5] on rank 0 and float64[4, 5] on rank -1",
    )


@with_peers
def test_more_parameters_on_one_side(world: World) -> None:
    ddl.init(1, "-mode n")
    usual = some((3,), (2,))
    check(
        world,
        lambda: ddl.all_reduce_n(usual),
        lambda: ddl.all_reduce_n(some((3,), (2,), (7,))),
        "Rank -1 has more of them (2 on rank 0, 3 on rank -1), the first is parameter 2,"
        " float32[7]",
    )
    check(
        world,
        lambda: ddl.all_reduce_n(usual),
        lambda: ddl.all_reduce_n([]),
        "Rank 0 has more of them (2 on rank 0, 0 on rank -1), the first is parameter 0, float32[3]",
    )


@with_peers
def test_another_call_or_other_arguments(world: World) -> None:
    ddl.init()
    x = torch.ones(3)
    check(
        world,
        lambda: ddl.all_reduce(x),
        lambda: ddl.bcast(x),
        "Rank 0 calls all_reduce(sum), and rank -1 calls bcast()",
    )
    check(
        world,
        lambda: ddl.all_reduce(x),
        lambda: ddl.all_reduce(x, "avg"),
        "Rank 0 calls all_reduce(sum), and rank -1 calls all_reduce(avg)",
    )
    check(
        world,
        lambda: ddl.all_reduce(x),
        lambda: ddl.all_reduce(x, mpi=True, check=0.5),
        "Rank 0 calls all_reduce(sum), and rank -1 calls all_reduce(sum, mpi, check=0.5)",
    )


@with_peers
def test_names_tell_parameters_of_one_shape_apart(world: World) -> None:
    """Two layers of one size that change places give wrong gradients, and no shape shows it."""
    ddl.init()
    pair = some((2, 2), (2, 2))
    check(
        world,
        lambda: ddl.all_reduce_n(pair, names=["query", "key"]),
        lambda: ddl.all_reduce_n(pair, names=["key", "query"]),
        "Parameter 0 is 'query' float32[2, 2] on rank 0 and 'key' float32[2, 2] on rank -1",
    )
    gradients = [(torch.ones(2), 0), (torch.ones(2), 1)]
    check(
        world,
        lambda: ddl.grads_reduce(gradients),
        lambda: ddl.grads_reduce([(None, 0), (torch.ones(2), 1)]),
        "Parameter 0 is 'gradient 0' float32[2] on rank 0 and 'gradient 1' float32[2] on rank -1"
        " (2 on rank 0, 1 on rank -1)",
    )


@with_peers
def test_a_call_that_is_not_ours(world: World) -> None:
    """The other one cannot be asked for its parameters: the error is the transport's own.

    A ring on several hosts is another group, in which nobody sees a call on the world's.
    """
    ddl.init(1, f"-mode n:{world.size}")
    call = ddl.all_reduce if world.rank == 0 else kadril.allreduce
    with pytest.raises(MismatchError, match="made different calls"):
        call(torch.ones(3 + world.rank), name="loss")
    assert ddl.all_reduce(torch.ones(1)).item() == world.size
