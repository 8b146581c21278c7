"""The timeline: one file of all ranks that is whole at every moment."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kadril.torch as hvd
from kadril.testing import ranks
from kadril.world import World


def events_of(path: Path) -> list[dict[str, Any]]:
    """Read the file in one piece: writers hold its lock, and Python reads until the end stays."""
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        events: list[dict[str, Any]] = json.load(file)
    return events


def work(num_steps: int) -> None:
    for step in range(num_steps):
        handles = [
            hvd.allreduce_async_(torch.ones(10), name=f"tensor {index}", op=hvd.Sum)
            for index in range(5)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.allgather(torch.ones(1), name='with "quotes"\n')
        hvd.barrier()
        assert step >= 0


@ranks(1, 2, 3, transports=("shm", "c10d"))
def test_all_ranks_are_in_one_file(world: World, tmp_path: Path) -> None:
    hvd.init()
    path = tmp_path / f"timeline-{world.size}.json"
    hvd.start_timeline(str(path), mark_cycles=True)
    work(3)
    hvd.stop_timeline()
    hvd.barrier()
    events = events_of(path)
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == set(range(world.size))
    for rank in range(world.size):
        own = [event["name"] for event in spans if event["pid"] == rank]
        assert own.count("NEGOTIATE_ALLREDUCE") == 15
        assert own.count("RUN_ALLREDUCE") + own.count("FUSED_ALLREDUCE") == 15
        assert own.count("RUN_ALLGATHER") == 3
        names = {
            event["args"]["name"]
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == rank
        }
        assert {"allreduce.tensor 0", "allreduce.tensor 4", 'allgather.with "quotes"\n'} <= names
    assert any(event["name"] == "CYCLE_START" for event in events)
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)


@ranks(2, transports=("shm", "tiered"))
def test_clocks_are_one(world: World, tmp_path: Path) -> None:
    """A request is run by all ranks at once, so their spans of it overlap.

    On another host the span of the last request was missing: its rank stopped the timeline as soon
    as it had the result, before the span was written.
    """
    hvd.init()
    path = tmp_path / "clocks.json"
    hvd.start_timeline(str(path))
    for index in range(5):
        hvd.allreduce(torch.ones(1 << 16), name=f"x{index}")
    hvd.stop_timeline()
    hvd.barrier()
    for index in range(5):
        runs = []
        for rank in range(world.size):
            (track,) = {
                event["tid"]
                for event in events_of(path)
                if event["ph"] == "M"
                and event["pid"] == rank
                and event["args"].get("name") == f"allreduce.x{index}"
            }
            runs += [
                (event["ts"], event["ts"] + event["dur"])
                for event in events_of(path)
                if event["name"] == "RUN_ALLREDUCE"
                and event["pid"] == rank
                and event["tid"] == track
            ]
        assert len(runs) == world.size
        assert max(start for start, _ in runs) <= min(end for _, end in runs)


@ranks(2)
def test_the_file_is_whole_while_it_is_written(world: World, tmp_path: Path) -> None:
    hvd.init()
    path = tmp_path / "whole.json"
    hvd.start_timeline(str(path))
    assert isinstance(events_of(path), list)
    seen = 0
    for step in range(300):
        for index in range(20):
            hvd.allreduce_(torch.ones(4), name=f"{step}.{index}")
        if world.rank == 0 and step % 10 == 0:
            seen = len(events_of(path))
    hvd.stop_timeline()
    hvd.barrier()
    assert len(events_of(path)) > max(seen, 300 * 20 * 2)


@ranks(2, transports=("shm", "c10d"))
def test_events_are_in_the_file_soon(world: World, tmp_path: Path) -> None:
    """Programs look at the file 0.1 s after an op; it used to be written a second later.

    Or later still: here rank 0's engine sleeps in a cycle until rank 1 asks for something.
    """
    hvd.init()
    path = tmp_path / "soon.json"
    hvd.start_timeline(str(path), mark_cycles=True)
    delays = []
    for turn in range(3):
        name = f"x{turn}"
        gate = tmp_path / f"seen {turn}"
        hvd.allreduce(torch.ones(4), name=name)
        start = time.monotonic()
        if world.rank == 0:
            later = hvd.allreduce_async(torch.ones(1), name="later")
            # Rank 0's own events: the other rank writes in its own time.
            assert until(lambda name=name: is_whole(events_of(path), name))
            delays.append(time.monotonic() - start)
            gate.touch()
        else:
            assert until(gate.exists)
            later = hvd.allreduce_async(torch.ones(1), name="later")
        hvd.synchronize(later)
    hvd.stop_timeline()
    # The quickest, since this machine may have other work.
    assert min(delays, default=0.0) < 0.1, delays


def until(condition: Callable[[], bool], timeout: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def is_whole(events: list[dict[str, Any]], name: str) -> bool:
    """Whether rank 0's part of an all-reduce is there, with the mark of a cycle."""
    own = [event for event in events if event["pid"] == 0]
    tracks = {
        event["tid"]
        for event in own
        if event["name"] == "thread_name" and event["args"]["name"] == f"allreduce.{name}"
    }
    phases = {event["name"] for event in own if event.get("tid") in tracks}
    starts = [
        event["args"]["start_time_since_epoch_in_micros"] / 1e6
        for event in own
        if event["name"] == "process_name"
    ]
    return (
        all(abs(time.time() - start) < 60.0 for start in starts)
        and {"process_name", "CYCLE_START"} <= {event["name"] for event in own}
        and {"NEGOTIATE_ALLREDUCE", "RUN_ALLREDUCE"} <= phases
    )


@ranks(2)
def test_a_set_made_later_marks_its_cycles(world: World, tmp_path: Path) -> None:
    """Such a set used not to. Rank 1 has five ops of its own, one after the other."""
    hvd.init(process_sets="dynamic")
    path = tmp_path / "sets.json"
    hvd.start_timeline(str(path), mark_cycles=True)
    lone = hvd.add_process_set([1])
    if lone.included():
        for turn in range(5):
            hvd.allreduce(torch.ones(1), name=str(turn), process_set=lone)
    hvd.stop_timeline()
    hvd.barrier()
    marks = [event["pid"] for event in events_of(path) if event["name"] == "CYCLE_START"]
    assert marks.count(1) >= 5
    assert marks.count(0) < 5


@ranks(1)
def test_misuse_is_told(world: World, tmp_path: Path) -> None:
    hvd.init()
    hvd.start_timeline(str(tmp_path / "one.json"))
    with pytest.raises(ValueError, match=r"one\.json"):
        hvd.start_timeline(str(tmp_path / "two.json"))
    hvd.stop_timeline()
    hvd.stop_timeline()
    with pytest.raises(OSError, match="No such file"):
        hvd.start_timeline(str(tmp_path / "nowhere" / "three.json"))
    hvd.start_timeline(str(tmp_path / "four.json"))
    hvd.stop_timeline()
