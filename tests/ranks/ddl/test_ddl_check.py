"""`check`: a wrong value or a NaN raises on every rank, and leaves a dump file that can be read."""

from __future__ import annotations

import contextlib
import io
import math
from pathlib import Path

import pytest
import torch
from ddl_stage import altered, inputs_of, working_in

import kadril.ddl as ddl
from kadril.ddl import command
from kadril.errors import CheckError
from kadril.testing import ranks
from kadril.world import World

with_peers = ranks(2, 3, 4, transports=("shm", "mpi:openmpi"))


def shown(path: Path) -> str:
    """Return what `kadril ddl show` prints of a file."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert command.main(["show", str(path)]) == 0
    return output.getvalue()


@ranks(1, 4, transports=("shm", "c10d", "mpi:openmpi"))
def test_right_results_pass(world: World, tmp_path: Path) -> None:
    """Right results pass the manual's limit, also with 0.1 in all elements, which no float is."""
    with working_in(tmp_path):
        ddl.init(1, f"-mode n:{world.size}")
        for op in ("sum", "avg"):
            x = torch.full((1000,), 0.1 * (world.rank + 1))
            ddl.all_reduce(x, op, check=0.17)
            ddl.all_reduce_n([x, x.half(), x.bfloat16(), x.double()], op, check=0.02)
        assert list(tmp_path.iterdir()) == []


@with_peers
def test_values_that_cancel_out_are_right(world: World, tmp_path: Path) -> None:
    """The sum is noise around 0, and its relative error can be anything."""
    with working_in(tmp_path):
        ddl.init()
        generator = torch.Generator().manual_seed(3)
        numbers = torch.randn(world.size - 1, 10_000, generator=generator)
        parts = [*numbers, -numbers.sum(0)]
        ddl.all_reduce(parts[world.rank].contiguous(), check=0.01)


@with_peers
def test_a_wrong_value_raises_on_every_rank(world: World, tmp_path: Path) -> None:
    everyone = inputs_of(world, (2, 3), (4, 5))
    mine = everyone[world.rank]
    total = sum(each[1] for each in everyone)
    wrong = float(total[1, 2]) + 100.0
    with working_in(tmp_path), altered(world, 6 + 7, wrong, 26):
        ddl.init(1, f"-mode n:{world.size}")
        with pytest.raises(CheckError) as caught:
            ddl.all_reduce_n(mine, check=0.5, names=["bias", "weight"])
        error = caught.value
        assert (error.rank, error.parameter, error.name) == (0, 1, "weight")
        assert (error.index, error.value, error.limit) == ((1, 2), wrong, 0.5)
        assert error.reference == float(total[1, 2])
        largest = max(float(each[1].abs().max()) for each in everyone)
        floor = math.sqrt(torch.finfo(torch.float32).eps) * largest
        assert error.error == 100.0 / max(abs(error.reference), floor)
        message = str(error)
        assert "parameter 1 ('weight' float32[4, 5]), element [1, 2]" in message
        assert "1 element is wrong there" in message
        dump = ddl.read_dump(error.path)
        assert (dump.facts["rank"], dump.facts["name"]) == (world.rank, "weight")
        assert torch.equal(dump.arrays["input"], mine[1].view(-1))
        assert torch.equal(dump.arrays["reference"], total.view(-1))
        assert dump.arrays["value"][7] == wrong
        assert dump.facts["inputs"][str(world.size - 1)][4] == f"{everyone[-1][1][1, 2]:g}"
        text = shown(Path(error.path))
        assert "worst element [1, 2]" in text
        assert "<-- worst" in text
        # The next call works.
        assert ddl.all_reduce(torch.ones(1)).item() == world.size
        world.transport.barrier()
        files = sorted(path.name for path in tmp_path.iterdir())
        assert files == [f"ddl.dump{number:03d}" for number in range(world.size)]


@with_peers
def test_a_value_that_is_wrong_on_one_rank_only(world: World, tmp_path: Path) -> None:
    """The others would go on with other parameters than that rank: they have to hear of it."""
    odd = world.size - 1
    hurt = altered(world, 3, 77.0, 5) if world.rank == odd else contextlib.nullcontext()
    with working_in(tmp_path), hurt:
        ddl.init()
        with pytest.raises(CheckError) as caught:
            ddl.all_reduce(torch.ones(5), check=0.01)
        assert caught.value.rank == odd
        assert f"failed on rank {odd}: parameter 0" in str(caught.value)
        if world.rank == odd:
            assert Path(caught.value.path).name == "ddl.dump000"
        else:
            assert "This rank's own result is right." in str(caught.value)
            assert caught.value.path == ""
        world.transport.barrier()
        assert [path.name for path in tmp_path.iterdir()] == ["ddl.dump000"]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@with_peers
def test_nan_in_an_input_is_found_and_its_rank_shown(
    world: World, tmp_path: Path, broken: float
) -> None:
    with working_in(tmp_path):
        ddl.init()
        x = torch.ones(3, 3)
        if world.rank == 1:
            x[2, 0] = broken
        with pytest.raises(CheckError) as caught:
            ddl.all_reduce(x, "avg", check=0.17)
        error = caught.value
        assert (error.index, error.error) == ((2, 0), math.inf)
        what = "NaN" if math.isnan(broken) else "an infinite value"
        assert f"{what}, which no limit allows" in str(error)
        assert f"Given were 1 by rank 0, {broken} by rank 1" in str(error)
        assert f"{broken}" in shown(Path(error.path))
        # Without a check NaN passes, as in DDL.
        assert math.isnan(ddl.all_reduce(x)[2, 0]) == math.isnan(broken)


@ranks(2)
def test_a_directory_that_cannot_be_written(world: World, tmp_path: Path) -> None:
    """The check has failed all the same; the message says why there is no file."""
    gone = tmp_path / str(world.rank)
    gone.mkdir()
    with working_in(gone), altered(world, 0, 9.0, 1):
        gone.rmdir()
        ddl.init()
        with pytest.raises(CheckError) as caught:
            ddl.all_reduce(torch.ones(1), check=0.1)
        assert caught.value.path == ""
        assert "not written" in str(caught.value)


@ranks(2)
def test_large_arrays_are_cut_around_the_worst_element(world: World, tmp_path: Path) -> None:
    count, place = (1 << 21) + 3, (1 << 20) + 7
    with working_in(tmp_path), altered(world, place, -1.0, count):
        ddl.init()
        with pytest.raises(CheckError) as caught:
            ddl.all_reduce(torch.ones(count), check=0.1)
        dump = ddl.read_dump(caught.value.path)
        begin = dump.facts["begin"]
        assert dump.arrays["value"].numel() == 1 << 20
        assert dump.arrays["value"][place - begin] == -1.0
        assert f"worst element [{place}]" in shown(Path(caught.value.path))
