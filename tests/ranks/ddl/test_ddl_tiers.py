"""`kadril.ddl` on several hosts: modes, checks, mismatches and reports over tiers.

Ranks with different labels are treated as on different hosts; all run on this machine.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ddl_stage import altered, inputs_of, working_in

import kadril.ddl as ddl
from kadril.errors import CheckError, MismatchError
from kadril.testing import ranks
from kadril.world import World

in_pairs = ranks(4, transports=("tiered",), hosts="2+2")
uneven = ranks(5, transports=("tiered",), hosts="3+2")

# Arrays that ride along in a meeting, that go by leaders, and that go in chunks.
SHAPES = ((3,), (2000,), (700, 500))


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """The lines that kadril logs."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("kadril")
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("mode", ["n:2x2", "b", "c", "r:4", "m", "p"])
@in_pairs
def test_every_mode_adds_up_the_same(world: World, mode: str) -> None:
    learner = ddl.init(2, f"-mode {mode}")
    assert (ddl.num_hosts(), learner.device_id) == (2, world.local_rank)
    everyone = inputs_of(world, *SHAPES)
    totals = [sum(each) for each in zip(*everyone, strict=True)]
    for _ in range(10 if mode == "p" else 1):
        got = ddl.all_reduce_n(everyone[world.rank])
        assert all(torch.equal(x, torch.as_tensor(y)) for x, y in zip(got, totals, strict=True))
    way = ddl.last_reduction().way
    flat = ddl.all_reduce_n(everyone[world.rank], mpi=True)
    assert all(torch.equal(x, torch.as_tensor(y)) for x, y in zip(flat, totals, strict=True))
    baseline = ddl.last_reduction().way
    assert not baseline.startswith("tiered"), "the baseline does not know of hosts"
    if mode[0] in "bnc":
        assert way == "tiered all-reduce"
    elif mode[0] == "r":
        assert way == baseline


@uneven
def test_uneven_hosts_and_the_reference(world: World) -> None:
    """Numbers that no float holds exactly: tiers and the reference add them in other orders."""
    ddl.init(1, "-mode n")
    x = torch.full((3000,), 0.1 * (world.rank + 1))
    ddl.all_reduce_n([x, x.double(), x.bfloat16()], "avg", check=0.02)


@in_pairs
def test_a_wrong_value_and_its_dump(world: World, tmp_path: Path) -> None:
    with working_in(tmp_path), altered(world, 1234, 77.0, 5000):
        ddl.init(1, "-mode n:2x2")
        with pytest.raises(CheckError) as caught:
            ddl.all_reduce(torch.ones(5000), check=0.1)
        error = caught.value
        assert (error.index, error.value, error.reference) == ((1234,), 77.0, 4.0)
        assert "is 77 by tiered all-reduce and 4 by " in str(error)
        assert ddl.read_dump(error.path).arrays["value"][1234] == 77.0


@pytest.mark.parametrize("mode", ["n", "r", "p"])
@in_pairs
def test_different_parameters_are_named(world: World, mode: str) -> None:
    """Every mode names them, also where one learner asks for the baseline on another transport."""
    ddl.init(1, f"-mode {mode}")
    wide = world.rank == 3
    with pytest.raises(MismatchError, match=r"Parameter 1 is float32\[4\] on rank 0 and float32"):
        ddl.all_reduce_n([torch.ones(2), torch.ones(5 if wide else 4)])
    with pytest.raises(MismatchError, match=r"rank 3 calls all_reduce\(sum, mpi\)"):
        ddl.all_reduce(torch.ones(3), mpi=wide)
    assert ddl.all_reduce(torch.ones(1)).item() == 4.0


@in_pairs
def test_a_report_tells_tiers_and_link(world: World) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        ddl.init(1, "-mode n:2x2 -dump_iter 2")
        for _ in range(2):
            ddl.all_reduce(torch.ones(300_000))
    text = output.getvalue()
    if world.rank:
        assert text == ""
        return
    assert re.search(r"^ddl: all-reduces 1 to 2, largest 1\.1 MiB: tiered all-reduce$", text, re.M)
    times = dict(re.findall(r"^ddl:   (within hosts|across hosts) +(\d+\.\d\d) ms$", text, re.M))
    assert set(times) == {"within hosts", "across hosts"}
    assert float(times["across hosts"]) > 0
    link = r"none stands out; the slowest is \S+ \(ranks 0\.\.1\) to \S+ \(ranks 2\.\.3\), .* MB/s"
    assert re.search(link, text), text


@in_pairs
def test_dimensions_that_are_not_those_of_the_hosts(world: World) -> None:
    """Rank 0 tells of such dimensions, and tiers are those of the real hosts."""
    with logged() as records:
        ddl.init(1, "-mode n:4x1")
    told = [text for text in records if "says 1 host of 4" in text]
    assert len(told) == (1 if world.rank == 0 else 0)
    if told:
        assert "the 4 learners run on 2 hosts of 2" in told[0]
    assert ddl.all_reduce(torch.ones(1)).item() == 4.0


@ranks(4, transports=("tiered",), hosts="1+1+1+1")
def test_racks_of_a_mode_need_the_option_where_a_world_is_open(world: World) -> None:
    with logged() as records:
        ddl.init(1, "-mode n:1x2x2")
    told = [text for text in records if "set KADRIL_TIERS=1x2x2" in text]
    assert len(told) == (1 if world.rank == 0 else 0)
