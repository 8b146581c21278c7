"""`kadril.ddl`: who a learner is, and what its collectives give, in every mode and dtype."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ddl_stage import inputs_of
from exact import DTYPE_NAMES, expected, inputs, same

import kadril
import kadril.ddl as ddl
from kadril.errors import (
    AlreadyInitializedError,
    ConfigError,
    MismatchError,
    NotInitializedError,
    StateError,
)
from kadril.testing import ranks
from kadril.world import World

TRANSPORTS = ("shm", "c10d", "mpi:openmpi")
anywhere = ranks(1, 3, transports=TRANSPORTS)

MODES = ("b", "n", "r", "m", "c", "p")
SHAPES = ((2, 3), (5,), (), (0, 4), (1, 1, 7))


@anywhere
def test_init_tells_who_this_is(world: World) -> None:
    learner = ddl.init(2, mode=f"-mode r:{world.size}")
    rank, size, device_id = learner
    assert (rank, size, device_id) == (world.rank, world.size, world.local_rank % 2)
    assert (ddl.rank(), ddl.size(), ddl.local_rank()) == (world.rank, world.size, world.local_rank)
    assert (ddl.num_hosts(), ddl.local_size()) == (len(world.layout.hosts), world.local_size)
    assert learner.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert ddl.init(2, mode=f"-mode r:{world.size}") is learner, "again, with the same arguments"
    with pytest.raises(AlreadyInitializedError, match="asked for num_gpu=4 and 'no options'"):
        ddl.init(4)
    ddl.finalize()
    ddl.finalize()
    assert not world.is_closed, "init() did not open it"
    for call in (ddl.rank, ddl.size, lambda: ddl.all_reduce(torch.ones(1))):
        with pytest.raises(NotInitializedError, match=r"call kadril\.ddl\.init\(\) first"):
            call()
    assert ddl.init("-mode p").device_id == world.local_rank, "as later versions of DDL have it"


@ranks(2)
def test_options_of_the_variable(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDL_OPTIONS", "-mode r:2 -dump_iter 3")
        ddl.init(1)
        with pytest.raises(AlreadyInitializedError, match="-mode r:2 -dump_iter 3"):
            ddl.init(1, mode="-dump_iter 4")
        ddl.finalize()
    with pytest.raises(TypeError, match="options in both arguments"):
        ddl.init("-mode p", "-mode p")
    with pytest.raises(ValueError, match="num_gpu must be 0 or more"):
        ddl.init(-1)


@ranks(4)
def test_a_wrong_product_is_refused_on_every_rank(world: World) -> None:
    with pytest.raises(ConfigError, match="2 x 3 = 6, but 4 learners run; try n:2x2"):
        ddl.init(2, mode="-mode n:2x3")
    ddl.init(2, mode="-mode n:2x2")
    assert ddl.all_reduce(torch.ones(1)).item() == 4.0


@ranks(3)
def test_learners_with_different_options_are_told_of_both(world: World) -> None:
    with pytest.raises(MismatchError) as caught:
        ddl.init(2, mode="-mode r:3" if world.rank < 2 else "-mode n:3")
    assert "options -mode r:3 on rank 0 and options -mode n:3 on rank 2" in str(caught.value)
    assert "the same DDL_OPTIONS" in str(caught.value)
    ddl.init(2)


@pytest.mark.parametrize("mode", MODES)
@anywhere
def test_every_mode_adds_up_the_same(world: World, mode: str) -> None:
    ddl.init(1, mode=f"-mode {mode}:{world.size}")
    everyone = inputs_of(world, *SHAPES)
    mine = everyone[world.rank]
    totals = [sum(each) for each in zip(*everyone, strict=True)]
    for _ in range(11):  # as many as mode p explores, and more
        got = ddl.all_reduce_n(mine)
        for result, total, given in zip(got, totals, mine, strict=True):
            assert result.shape == given.shape
            assert torch.equal(result, torch.as_tensor(total))
    for given, total in zip(mine, totals, strict=True):
        assert torch.equal(ddl.all_reduce(given), torch.as_tensor(total))
        assert torch.equal(ddl.all_reduce(given, "avg", mpi=True), total / world.size)
    if mode == "p":
        assert ddl.last_reduction().way


@pytest.mark.parametrize("name", DTYPE_NAMES)
@ranks(3, transports=("shm", "mpi:openmpi"))
def test_every_dtype(world: World, name: str) -> None:
    ddl.init()
    x, total = inputs(name, "sum", world.rank, 40), expected(name, "sum", world.size, 40)
    for mpi in (False, True):
        assert same(ddl.all_reduce(x, mpi=mpi, check=1e-3), total)
    if name != "bfloat16":
        array = ddl.all_reduce(x.numpy())
        assert isinstance(array, np.ndarray)
        assert same(array, total)
    assert same(ddl.bcast(x), inputs(name, "sum", 0, 40))


@anywhere
def test_the_baseline_says_which_it_is(world: World) -> None:
    ddl.init()
    with pytest.raises(StateError, match="there was no all-reduce yet"):
        ddl.last_reduction()
    ddl.all_reduce(torch.ones(3, dtype=torch.float64), mpi=True)
    last = ddl.last_reduction()
    flat = world.transport.open_flat() or world.transport
    wanted = "MPI_Allreduce (Open MPI v" if world.communicator else f"{flat.kind} all-reduce"
    assert last.way.startswith(wanted)
    assert (last.num_bytes, last.seconds > 0) == (24, True)


@anywhere
def test_lists_may_mix_everything(world: World) -> None:
    """One call for tensors and arrays of several dtypes, strides and no elements at all."""
    ddl.init(1, f"-mode n:{world.size}")
    scale = world.rank + 1
    total = sum(range(1, world.size + 1))
    given = [
        torch.arange(6.0).view(2, 3).t() * scale,
        np.arange(4, dtype=np.int32) * scale,
        torch.arange(3.0) * scale,
        np.asfortranarray(np.ones((2, 2), dtype=np.float32)) * scale,
        torch.empty(0, 3),
        torch.tensor(2 + 1j, dtype=torch.complex64).conj() * scale,
    ]
    got = ddl.all_reduce_n(given, check=1e-6)
    for before, after in zip(given, got, strict=True):
        assert type(after) is type(before)
        assert after.dtype == before.dtype
        one = torch.as_tensor(before) / scale * total
        assert torch.equal(torch.as_tensor(after).to(one.dtype), one)
    assert ddl.all_reduce_n([]) == []


@anywhere
def test_results_are_new_and_in_place_ones_are_not(world: World) -> None:
    ddl.init()
    x, y = torch.full((2, 2), 1.0), np.ones(3)
    assert ddl.all_reduce(x) is not x
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert ddl.all_reduce_(x) is x
    assert x.tolist() == [[world.size] * 2] * 2
    strided = torch.ones(4, 2).t()
    listed = [strided, y]
    assert ddl.all_reduce_n_(listed, "avg") is listed
    assert y.tolist() == [1.0] * 3
    z = torch.full((3,), float(world.rank + 5))
    assert ddl.bcast(z).tolist() == [5.0] * 3
    assert ddl.bcast_(z) is z
    assert z.tolist() == [5.0] * 3


@anywhere
def test_bcast_takes_parameters(world: World) -> None:
    """DDL broadcasts every trainable parameter, and these require gradients."""
    ddl.init()
    torch.manual_seed(world.rank)
    model = torch.nn.Linear(3, 2)
    torch.manual_seed(0)
    wanted = torch.nn.Linear(3, 2)
    assert torch.equal(ddl.bcast(model.weight), wanted.weight)
    ddl.bcast_n_(list(model.parameters()), names=["weight", "bias"])
    assert torch.equal(model.weight, wanted.weight)
    assert torch.equal(model.bias, wanted.bias)
    assert model.weight.requires_grad
    with pytest.raises(ValueError, match="records no graph"):
        ddl.bcast(model.weight * 2)
    with pytest.raises(ValueError, match="records no graph"):
        ddl.all_reduce(model.weight)


@ranks(2)
def test_names_of_all_interfaces(world: World) -> None:
    ddl.init()
    x = torch.tensor([1.0 + world.rank])
    assert ddl.AllReduce(x).item() == ddl.allreduce(x, op="sum").item() == 3.0
    assert ddl.AllReduceN([x])[0].item() == 3.0
    assert ddl.allreduce_n([x])[0].item() == 1.5, "later versions average"
    assert ddl.allreduce_n([x], average=False)[0].item() == 3.0
    assert ddl.allreduce_n([x], op="sum")[0].item() == 3.0
    with pytest.raises(TypeError, match="average or op, not both"):
        ddl.allreduce_n([x], True, op="sum")
    assert ddl.Bcast(x).item() == 1.0
    variable = object()
    pairs = ddl.grads_reduce([(x, variable), (None, 7)])
    assert [(None if g is None else g.item(), v) for g, v in pairs] == [(1.5, variable), (None, 7)]
    assert ddl.grads_reduce([(x, variable)], average=False)[0][0].item() == 3.0
    assert kadril.ddl is ddl


@ranks(2)
def test_misuse_that_one_learner_can_see(world: World) -> None:
    ddl.init()
    with pytest.raises(TypeError, match="expected a torch tensor or a numpy array, got float"):
        ddl.all_reduce(1.0)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="op must be 'sum' or 'avg', got 'mean'"):
        ddl.all_reduce(torch.ones(1), "mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the mean of torch\.int64 need not be a whole number"):
        ddl.all_reduce(torch.ones(1, dtype=torch.int64), "avg")
    with pytest.raises(ValueError, match="check must be a number from 0"):
        ddl.all_reduce(torch.ones(1), check=math.nan)
    with pytest.raises(ValueError, match="1 names for 2 parameters"):
        ddl.all_reduce_n([torch.ones(1), torch.ones(1)], names=["one"])
    assert ddl.all_reduce(torch.ones(1)).item() == 2.0, "the next call works"
