"""`kadril.allreduce` and its siblings: values, memory, and what is refused, on every transport."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import kadril
from kadril.errors import MismatchError
from kadril.testing import ranks
from kadril.world import World

TRANSPORTS = ("shm", "c10d", "mpi:openmpi")
anywhere = ranks(1, 3, transports=TRANSPORTS)


def everyones(world: World, *shape: int) -> list[torch.Tensor]:
    """A tensor for each rank, of whole numbers, so that sums are exact."""
    numbers = torch.arange(float(np.prod(shape))).view(shape)
    return [numbers + 100 * rank for rank in range(world.size)]


def arrays(x: torch.Tensor) -> list[Any]:
    """The same values as a tensor, as an array, and with strides that memory does not have."""
    return [x, x.numpy(), x.repeat_interleave(2, -1)[..., ::2], np.asfortranarray(x.numpy())]


@anywhere
def test_allreduce_gives_a_new_array(world: World) -> None:
    values = everyones(world, 2, 3)
    for op, wanted in (
        ("sum", sum(values)),
        ("mean", sum(values) / world.size),
        ("max", values[-1]),
        ("min", values[0]),
    ):
        for x in arrays(values[world.rank].clone()):
            y = kadril.allreduce(x, op)
            assert type(y) is type(x)
            assert torch.equal(torch.as_tensor(y), torch.as_tensor(wanted)), op
            assert torch.equal(torch.as_tensor(x), values[world.rank]), "x stays as it is"


@anywhere
def test_allreduce_into_given_memory(world: World) -> None:
    values = everyones(world, 4)
    total = sum(values)
    x, out = values[world.rank].clone(), torch.zeros(4)
    assert kadril.allreduce(x, out=out) is out
    assert torch.equal(out, total)
    array = x.numpy().copy()
    assert kadril.allreduce(array, out=array) is array
    assert array.tolist() == total.tolist()
    assert kadril.allreduce_(x) is x
    assert torch.equal(x, total)


@anywhere
def test_reduce_gives_the_root_alone(world: World) -> None:
    values, root = everyones(world, 3), world.size - 1
    for x in arrays(values[world.rank].clone()):
        y = kadril.reduce(x, root)
        if world.rank == root:
            assert y.tolist() == sum(values).tolist()
        else:
            assert y is None
        assert x.tolist() == values[world.rank].tolist()
    out = torch.zeros(3)
    got = kadril.reduce(values[world.rank], root, "mean", out=out)
    assert (got is out) == (world.rank == root)
    assert torch.equal(out, sum(values) / world.size if world.rank == root else torch.zeros(3))


@anywhere
def test_broadcast(world: World) -> None:
    values, root = everyones(world, 2, 2), world.size - 1
    for x in arrays(values[world.rank].clone()):
        y = kadril.broadcast(x, root)
        assert type(y) is type(x)
        assert y.tolist() == values[root].tolist()
        assert x.tolist() == values[world.rank].tolist()
    x = values[world.rank].clone()
    assert kadril.broadcast_(x, root) is x
    assert torch.equal(x, values[root])


@anywhere
def test_allgather_of_any_number_of_rows(world: World) -> None:
    """Rank r has r rows, rank 0 none: nobody has to know the sizes of others."""
    rows = [torch.full((rank, 2), float(rank)) for rank in range(world.size)]
    wanted = torch.cat(rows)
    for x in (rows[world.rank], rows[world.rank].numpy(), rows[world.rank].t().contiguous().t()):
        y = kadril.allgather(x)
        assert type(y) is type(x)
        assert tuple(y.shape) == tuple(wanted.shape)
        assert y.tolist() == wanted.tolist()
    assert kadril.allgather(torch.tensor(world.rank)).tolist() == list(range(world.size))
    assert kadril.allgather(np.array(world.rank)).tolist() == list(range(world.size))


@anywhere
def test_reduce_scatter_in_balanced_blocks(world: World) -> None:
    values = everyones(world, 5, 2)
    blocks = torch.tensor_split(torch.as_tensor(sum(values)), world.size)
    for x in arrays(values[world.rank].clone()):
        y = kadril.reduce_scatter(x)
        assert type(y) is type(x)
        assert y.tolist() == blocks[world.rank].tolist()


@anywhere
def test_alltoall(world: World) -> None:
    everyone = range(world.size)
    sizes = {r: [(r + to) % 3 for to in everyone] for r in everyone}
    rows = {r: torch.arange(2.0 * sum(sizes[r])).view(-1, 2) + 1000 * r for r in everyone}
    parts = {r: torch.split(rows[r], sizes[r]) for r in everyone}
    wanted = torch.cat([parts[r][world.rank] for r in everyone])
    mine = rows[world.rank]
    for x in (mine, mine.numpy()):
        y = kadril.alltoall(x, sizes[world.rank])
        assert type(y) is type(x)
        assert y.tolist() == wanted.tolist()
    came = kadril.alltoall(torch.tensor(sizes[world.rank]))
    assert came.tolist() == [sizes[r][world.rank] for r in everyone]
    kadril.barrier(name="end")


@ranks(2)
def test_a_graph_is_never_cut_in_silence(world: World) -> None:
    """A gradient that nobody computes is a wrong result; the error says which operation has one."""
    x = torch.ones(2, 2, requires_grad=True)
    calls = {
        "all_sum_reduce": lambda: kadril.allreduce(x),
        "sum_reduce": lambda: kadril.reduce(x),
        "ops.broadcast": lambda: kadril.broadcast(x),
        "all_gather": lambda: kadril.allgather(x),
        "reduce_scatter": lambda: kadril.reduce_scatter(x),
        "all_to_all": lambda: kadril.alltoall(x),
    }
    for instead, call in calls.items():
        with pytest.raises(ValueError, match=rf"requires a gradient; use kadril\.\w*\.?{instead}"):
            call()
    for in_place in (kadril.allreduce_, kadril.broadcast_):
        with pytest.raises(ValueError, match="requires a gradient"):
            in_place(x)
    with pytest.raises(ValueError, match="requires a gradient"):
        kadril.allreduce(x.detach(), out=x)
    with torch.no_grad():  # where torch records nothing, nothing is lost
        assert kadril.allreduce(x).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert kadril.allreduce(x.detach()).requires_grad is False


@ranks(2)
def test_the_operations_that_the_errors_name(world: World) -> None:
    """Operations that errors name can be pasted, take the same tensor, and have a gradient."""
    x = torch.ones(2, 2, requires_grad=True)
    only_root = kadril.partition.world_partition().create_partition_inclusive([0])
    is_root = world.rank == 0
    block_of_root = (2, 2) if is_root else None
    calls: list[tuple[Any, tuple[int, ...] | None]] = [
        (kadril.allreduce, (2, 2)),
        (kadril.allreduce_, (2, 2)),
        (kadril.reduce, block_of_root),
        (kadril.broadcast, (2, 2)),
        (kadril.broadcast_, (2, 2)),
        (kadril.allgather, (4, 2)),
        (kadril.reduce_scatter, (1, 2)),
        (kadril.alltoall, (2, 2)),
    ]
    for call, shape in calls:
        with pytest.raises(ValueError, match="requires a gradient") as refused:
            call(x)
        advice = re.search(r"use (kadril\.ops\..*), whose backward", str(refused.value))
        assert advice is not None
        needs_root_only = "ops.broadcast" in advice[1] and not is_root
        given = kadril.ops.zero_volume_tensor() if needs_root_only else x
        names = {"kadril": kadril, "x": given, "P_root": only_root}
        y = eval(advice[1], names)  # noqa: S307
        assert y.requires_grad
        assert shape is None or tuple(y.shape) == shape
        x.grad = None
        y.sum().backward()
        assert needs_root_only or x.grad is not None, advice[1]


@ranks(2)
def test_a_graph_sees_what_was_overwritten(world: World) -> None:
    """Autograd notices that a saved tensor was changed in place, as for torch's own operations."""
    weight = torch.ones(3, requires_grad=True)
    x = torch.ones(3)
    y = (weight * x).sum()
    kadril.allreduce_(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with torch.inference_mode():
        assert kadril.allreduce_(torch.ones(2)).tolist() == [2.0, 2.0]


@ranks(2)
def test_misuse_that_one_rank_can_see(world: World) -> None:
    x = torch.ones(4)
    with pytest.raises(TypeError, match="expected a torch tensor or a numpy array, got float"):
        kadril.allreduce(1.0)  # type: ignore[type-var]
    for in_place in (kadril.allreduce_, kadril.broadcast_):
        with pytest.raises(TypeError, match="expected a torch tensor or a numpy array, got list"):
            in_place([1.0])
    with pytest.raises(ValueError, match=r"out has the shape \(2, 2\), and the result \(4,\)"):
        kadril.allreduce(x, out=torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"the mean of torch.int64 need not be a whole number"):
        kadril.allreduce(torch.ones(2, dtype=torch.int64), "mean")
    with pytest.raises(ValueError, match="the mean of int32"):
        kadril.allreduce(np.ones(2, dtype=np.int32), "mean")
    with pytest.raises(ValueError, match="not contiguous"):
        kadril.allreduce_(torch.ones(2, 3).t())
    with pytest.raises(ValueError, match="there is no op 'average'"):
        kadril.allreduce(x, "average")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no dims has no rows"):
        kadril.reduce_scatter(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"sizes \[1, 2\] do not share out 4 rows among 2 ranks"):
        kadril.alltoall(x, [1, 2])
    with pytest.raises(ValueError, match="root is 2"):
        kadril.broadcast(x, 2)
    assert kadril.allreduce(x).tolist() == [2.0] * 4, "the next call works"


@ranks(2, transports=TRANSPORTS)
def test_what_differs_between_ranks(world: World) -> None:
    narrow, wide = torch.ones(2, 3), torch.ones(2, 4)
    x = narrow if world.rank == 0 else wide
    for call in (kadril.allgather, kadril.alltoall):
        with pytest.raises(MismatchError, match=r"\(2, 3\) on rank 0, \(2, 4\) on rank 1"):
            call(x)
    for call in (kadril.allreduce, kadril.broadcast, kadril.reduce_scatter):
        with pytest.raises(MismatchError):
            call(x)
    with pytest.raises(MismatchError):
        kadril.allgather(narrow if world.rank == 0 else narrow.double())
    assert kadril.allreduce(torch.ones(1)).item() == 2.0


@ranks(2, transports=("shm", "c10d"))
def test_too_many_dims_are_refused_on_all_ranks(world: World) -> None:
    """Only the rank that had them raised, and the others waited for it."""
    many = torch.ones([2] + [1] * 16)
    for call in (kadril.allgather, kadril.alltoall):
        with pytest.raises(ValueError, match="17 dims on rank 1; 16 are the most"):
            call(many if world.rank == 1 else torch.ones(2))
    assert kadril.allreduce(torch.ones(1)).item() == 2.0


@ranks(2)
def test_more_kinds_of_numbers(world: World) -> None:
    for dtype in (torch.bfloat16, torch.complex64, torch.int8, torch.bool):
        x = torch.ones(3, dtype=dtype)
        op = "bor" if dtype == torch.bool else "sum"
        assert kadril.allreduce(x, op).dtype == dtype
    half = kadril.allreduce(torch.full((2,), 1.0 + world.rank, dtype=torch.complex64), "mean")
    assert half.tolist() == [1.5, 1.5]
    # torch conjugates lazily: the values count, not the memory.
    conjugated = torch.full((1,), 1 + 2j, dtype=torch.complex64).conj()
    assert kadril.allreduce(conjugated).tolist() == [2 - 4j]
    read_only = np.broadcast_to(np.float32(3), (2, 2))
    assert kadril.allreduce(read_only).tolist() == [[6.0, 6.0], [6.0, 6.0]]
