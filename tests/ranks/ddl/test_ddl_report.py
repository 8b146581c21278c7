"""-dump_iter, -rebind_iter, -dbg_level: what rank 0 prints, and that it names the right learner."""

from __future__ import annotations

import contextlib
import io
import re
import time

import torch

import kadril.ddl as ddl
from kadril.ddl.call_log import CallLog
from kadril.ddl.links import probe_links
from kadril.ddl.report import describe_statistics
from kadril.testing import ranks
from kadril.world import Layout, World

anywhere = ranks(1, 3, transports=("shm", "c10d", "mpi:openmpi"))


def printed(world: World, options: str, num_calls: int, late_rank: int = -1) -> str:
    """Return what a rank prints during some all-reduces, in which one rank is 20 ms late."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        ddl.init(1, options)
        for _ in range(num_calls):
            if world.rank == late_rank:
                time.sleep(0.02)  # not for synchronization: it is what is to be noticed
            ddl.all_reduce_n([torch.ones(300), torch.ones(200)])
    ddl.finalize()
    return output.getvalue()


@anywhere
def test_a_report_after_every_so_many_calls(world: World) -> None:
    late_rank = world.size - 1
    text = printed(world, f"-mode n:{world.size} -dump_iter 4", 9, late_rank)
    if world.rank:
        assert text == ""
        return
    heads = [line for line in text.splitlines() if line.startswith("ddl: all")]
    kind = world.transport.kind
    assert heads == [
        f"ddl: all-reduces {first} to {first + 3}, largest 2.0 KiB: {kind} all-reduce"
        for first in (1, 5)
    ]
    lines = text.splitlines()
    has_tiers = len(world.layout.hosts) > 1
    assert len(lines) == 14 + 2 * has_tiers
    assert sum("across hosts" in line for line in lines) == 2 * has_tiers
    assert re.fullmatch(r"ddl:   reduction +\d+\.\d\d ms in the median, .*", lines[1])
    if world.size > 1:
        (slow, *_) = [line for line in lines if "slowest learner" in line]
        match = re.search(rf"rank {late_rank} on \S+, (\d+\.\d\d) ms late in the mean", slow)
        assert match is not None, slow
        assert float(match[1]) > 10.0, "it slept for 20 ms each time"
    assert sum("slow link" in line for line in lines) == 2
    assert sum("none: there is one host" in line for line in lines) == 2 * (not has_tiers)


@ranks(3)
def test_a_learner_that_is_slow_again_and_again_is_told_of(world: World) -> None:
    text = printed(world, "-rebind_iter 2", 7, 1)
    if world.rank == 0:
        (line,) = text.splitlines()
        assert line.startswith("ddl: rank 1 on ")
        assert "was the slowest learner in 3 looks in a row" in line
        assert "It may run on cores [" in line
    else:
        assert text == ""


@ranks(2)
def test_levels_of_talk(world: World) -> None:
    quiet = printed(world, "-mode n:2", 2)
    assert quiet == ""
    told = printed(world, "-mode p -dbg_level 2 -dev_sync 2", 2).splitlines()
    if world.rank == 0:
        hosts = " on 1 host of 2, on " if len(world.layout.hosts) == 1 else " on 2 hosts of 1, on "
        told = told[[line.startswith("ddl: 2 learners") for line in told].index(True) :]
        assert hosts in told[0]
        way = f"{world.transport.kind} all-reduce"
        assert re.fullmatch(rf"ddl: all-reduce 2, 2000 bytes by {way} in .* ms", told[2])


@ranks(4)
def test_links_between_hosts_are_measured(world: World) -> None:
    """Ranks 0, 2 and 1 and 3 stand for hosts: the probe needs a layout, not a real network."""
    layout = Layout.of([0, 1, 0, 2])
    links = probe_links(world.transport, layout)
    assert [link.hosts for link in links] == [(0, 1), (0, 2), (1, 2)]
    assert all(link.rate > 0 for link in links)
    slow = links[2]._replace(seconds=1.0)
    ddl.init()
    ddl.all_reduce(torch.ones(1))
    log = CallLog()
    log.add(ddl.last_reduction())
    text = describe_statistics(
        log.take(world.transport), 1, [*links[:2], slow], layout, ["a", "b", "a", "c"]
    )
    assert re.search(r"slow link +b \(rank 1\) to c \(rank 3\), 0\.5 MB/s", text)


@ranks(2)
def test_mode_p_keeps_one_way_for_each_size(world: World) -> None:
    ddl.init(1, "-mode p")
    kind, flat = world.transport.kind, world.transport.open_flat()
    tried = [f"{kind} all-reduce", f"{kind} reduce-scatter + all-gather"]
    if flat is not None:
        tried.insert(1, f"{flat.kind} all-reduce")
    ways = []
    for _ in range(3 * len(tried) + 3):
        ddl.all_reduce(torch.ones(100))
        ways.append(ddl.last_reduction().way)
    assert ways[:-3] == [way for way in tried for _ in range(3)]
    assert len(set(ways[-3:])) == 1, "chosen once, then kept"
    told = world.transport.allgather_bytes(ways[-1].encode().ljust(40))
    assert len(set(told)) == 1, "all learners chose the same"
    ddl.all_reduce(torch.ones(100_000))
    assert ddl.last_reduction().way == f"{kind} all-reduce", "another size begins anew"
