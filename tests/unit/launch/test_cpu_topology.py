"""Cores of rank files against the sockets, cores and processors of a host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kadril.errors import ConfigError
from kadril.launch.mapping.binding import bind_ranks, describe_sharing, thread_variables
from kadril.launch.mapping.cpu_topology import CpuTopology, this_topology
from kadril.launch.mapping.rank_file import PlacedRank, parse_slots

# Two sockets, two cores on each, two threads on each core, numbered as Linux does on Intel's.
SMT = CpuTopology((((0, 4), (1, 5)), ((2, 6), (3, 7))), frozenset(range(8)))


@pytest.mark.parametrize(
    ("text", "processors"),
    [
        ("0:0", {0, 4}),
        ("1:0-1", {2, 3, 6, 7}),
        ("2", {2, 6}),
        ("0,3", {0, 4, 3, 7}),
        ("1:0;0:1", {2, 6, 1, 5}),
        ("1:*", {2, 3, 6, 7}),
        ("*", set(range(8))),
    ],
)
def test_processors_of_cores(text: str, processors: set[int]) -> None:
    assert SMT.processors(parse_slots(text)) == processors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2:0", "slot=2:0: there is no socket 2; there is socket 0 with cores 0-1 and socket 1"),
        ("0:0-9", "slot=0:0-9: there is no core 2 of socket 0; there is socket 0 with cores 0-1"),
        ("4", "slot=4: there is no core 4 of the host"),
    ],
)
def test_what_does_not_exist_and_what_does(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SMT.processors(parse_slots(text))


def test_processors_that_may_not_be_used() -> None:
    inside = CpuTopology(SMT.sockets, frozenset({1, 4, 5}))
    assert inside.processors(parse_slots("0:0")) == {4}
    with pytest.raises(ConfigError, match="processors 2-3,6-7 may not be used here, only 1,4-5"):
        inside.processors(parse_slots("1:*"))


def test_topology_as_the_kernel_tells_it(tmp_path: Path) -> None:
    for number, (socket, siblings) in enumerate([(0, "0,2"), (1, "1,3"), (0, "0,2"), (1, "1,3")]):
        directory = tmp_path / f"cpu{number}" / "topology"
        directory.mkdir(parents=True)
        (directory / "physical_package_id").write_text(f"{socket}\n")
        (directory / "thread_siblings_list").write_text(f"{siblings}\n")
    (tmp_path / "cpu9").mkdir()  # off
    (tmp_path / "cpufreq").mkdir()
    assert this_topology(tmp_path).sockets == (((0, 2),), ((1, 3),))


def test_topology_of_this_machine() -> None:
    here = this_topology()
    assert here.allowed == os.sched_getaffinity(0)
    assert here.allowed <= {p for socket in here.sockets for core in socket for p in core}
    assert CpuTopology.from_fields(**json.loads(json.dumps(here.to_fields()))) == here


def test_topology_where_nobody_tells(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert this_topology(tmp_path).sockets == (tuple((number,) for number in allowed),)


def placed(rank: int, text: str = "") -> PlacedRank:
    return PlacedRank(rank, "a", parse_slots(text) if text else (), rank + 1)


def test_binding_by_file_by_flag_and_not_at_all() -> None:
    ranks = [placed(0, "0:1"), placed(1)]
    assert bind_ranks(ranks, SMT, bind=False) == [{1, 5}, set()]
    assert bind_ranks(ranks, SMT, bind=True) == [{1, 5}, {1}]
    with pytest.raises(ConfigError, match=r"rank file f, line 3: rank 2 on host a: .*no socket 7"):
        bind_ranks([placed(2, "7:0")], SMT, bind=False, source="f")


def test_ranks_that_share_cores_are_told_of() -> None:
    ranks = [placed(0, "0:*"), placed(1, "0:1"), placed(2, "1:*")]
    told = describe_sharing(ranks, bind_ranks(ranks, SMT, bind=False))
    assert told == ["ranks 0 and 1 share processors 1,5 of a (lines 1 and 2 of the rank file)"]


def test_threads_of_ranks() -> None:
    own = bind_ranks([placed(0, "0:*"), placed(1, "1:*")], SMT, bind=False)
    assert thread_variables({}, own, SMT)[0] == [{"OMP_NUM_THREADS": "4"}] * 2
    free = bind_ranks([placed(0), placed(1)], SMT, bind=False)
    numbers, note = thread_variables({}, free, SMT)
    assert numbers == [{"OMP_NUM_THREADS": "4"}] * 2
    assert note.startswith("OMP_NUM_THREADS=4 (8 cores, 2 ranks)")
    assert thread_variables({"OMP_NUM_THREADS": "3"}, free, SMT) == ([{}, {}], "")
