"""F03, F04, F07, F08, F24: a rank that is stopped or slow is named, and is not taken for dead."""

from __future__ import annotations

import ctypes
import signal
import time

import pytest
import torch

from kadril.testing import Ranks, faults
from kadril.world import World


def meet_twice(world: World) -> float:
    x = torch.ones(4)
    world.transport.allreduce(x)
    faults.gate("between")
    world.transport.allreduce(x, name="second")
    return float(x[0])


def test_a_stopped_rank_is_named_and_may_go_on() -> None:
    with Ranks(3, patience=60.0, stall_warning=0.2) as ranks:
        ranks.start(meet_twice).wait_mark("between")
        ranks.signal(1, signal.SIGSTOP)
        ranks.open_gate("between")
        deadline = time.monotonic() + 10.0
        while not any("stopped by a signal" in outcome.output for outcome in ranks.look()):
            assert time.monotonic() < deadline, "nobody reports the stopped rank"
            ranks.pump(lambda: False, 0.05)
        ranks.signal(1, signal.SIGCONT)
        outcomes = ranks.wait(20.0)
    assert [outcome.value for outcome in outcomes] == [9.0, 9.0, 9.0]
    report = outcomes[0].output + outcomes[2].output
    assert "for rank(s) 1 (stopped by a signal or a debugger)" in report
    assert "name='second'" in report


def test_patience_on_a_stopped_rank_ends() -> None:
    with Ranks(3, patience=1.0) as ranks:
        ranks.start(meet_twice).wait_mark("between")
        ranks.signal(2, signal.SIGSTOP)
        ranks.open_gate("between")
        outcomes = ranks.wait(20.0)
        for rank in (0, 1):
            error = outcomes[rank].error
            assert error is not None
            assert error.type == "Stalled"
            assert error.fields["rank"] == 2
            assert error.fields["state"] == "stopped"
            assert error.fields["name"] == "second"
            assert "kill -CONT" in error.message


def skip_a_call(world: World) -> None:
    world.transport.barrier(name="first")
    if world.rank != 1:
        world.transport.barrier(name="skipped")


def test_a_rank_that_skips_a_call_is_named_late() -> None:
    """F24: rank 1 returns early but lives; the others must not wait for ever."""
    with Ranks(3, patience=1.0) as ranks:
        outcomes = ranks.start(skip_a_call).wait(20.0)
        assert outcomes[1].returned
        for rank in (0, 2):
            error = outcomes[rank].error
            assert error is not None
            assert (error.type, error.fields["rank"]) == ("Stalled", 1)
            assert error.fields["state"] == "late"
            # What all ranks have in common, and which call is too many.
            assert (error.fields["num_common"], error.fields["waits"]) == (1, ())
            assert error.fields["last_common"] == "barrier(name='first')"
            assert "It is call 2 of this group" in error.message


def wait_in_another_group(world: World) -> None:
    group = world.transport.split(min(world.rank, 1))
    assert group is not None
    patient = group.duplicate(patience=60.0, stall_warning=60.0)
    world.transport.barrier()
    if world.rank == 0:
        world.transport.barrier(name="of all")
    if world.rank == 2:
        faults.gate("between")
    patient.barrier(name="of two")


def test_a_late_rank_is_told_with_the_call_and_line_that_it_waits_in() -> None:
    """F24: rank 1 waits for rank 2, which computes: no deadlock. Rank 0 waits for both."""
    with Ranks(3, patience=2.0) as ranks:
        ranks.start(wait_in_another_group)
        assert ranks.pump(lambda: not ranks.outcomes[0].hung, 10.0)
        ranks.open_gate("between")
        outcomes = ranks.wait(20.0)
        assert outcomes[1].returned
        assert outcomes[2].returned
        error = outcomes[0].error
        assert error is not None
        assert error.type == "Stalled", error.message
        assert error.fields["rank"] == 1
        (line,) = error.fields["waits"]
        assert "barrier(name='of two')" in line
        assert "ranks 1, 2" in line
        assert "test_stop.py:" in line
        assert f"Rank 1 waits in {line}" in error.message


def hold_the_gil(world: World, seconds: float) -> float:
    world.transport.barrier()
    if world.rank == 1:
        faults.mark("held")
        # PyDLL keeps the GIL, so no Python code of this process runs meanwhile.
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    x = torch.ones(1)
    world.transport.allreduce(x, name="after")
    return float(x)


def check_held_gil(seconds: float) -> None:
    with Ranks(3, patience=300.0, stall_warning=min(0.3, seconds / 3)) as ranks:
        outcomes = ranks.start(hold_the_gil, seconds).wait(seconds + 30.0)
    assert [outcome.value for outcome in outcomes] == [3.0] * 3, outcomes
    for rank in (0, 2):
        assert "for rank(s) 1\n" in outcomes[rank].output, outcomes[rank].output
        assert "name='after'" in outcomes[rank].output


def test_a_held_gil_is_late_not_dead() -> None:
    """F07: the rank is reported as late, and is one of the world when it is back."""
    check_held_gil(1.0)


@pytest.mark.faults
def test_a_gil_held_for_70_seconds() -> None:
    """F07: torch's watchdog is stuck for 480 s on a GIL that is not let go of."""
    check_held_gil(70.0)


def test_a_death_beside_a_held_gil() -> None:
    """F07: liveness needs no GIL, so others hear of a death; the rank itself when it is back."""
    with Ranks(3, patience=60.0) as ranks:
        ranks.start(hold_the_gil, 1.0).wait_mark("held", ranks=[1])
        ranks.signal(2, signal.SIGKILL)
        outcomes = ranks.wait(20.0)
        for rank in (0, 1):
            error = outcomes[rank].error
            assert error is not None, outcomes[rank]
            assert (error.type, error.fields["rank"]) == ("PeerLost", 2)
        assert outcomes[0].delay is not None
        assert outcomes[0].delay < 1.0


def come_late(world: World, num_steps: int) -> float:
    x = torch.zeros(1)
    for step in range(num_steps):
        if world.rank == 1:
            faults.gate(f"step {step}")
        x += 1
        world.transport.allreduce(x, name=f"step {step}")
    return float(x)


def test_a_straggler_is_named_and_no_error() -> None:
    """F08: the rank that comes late at every step is in the report of all others."""
    with Ranks(3, patience=60.0, stall_warning=0.2) as ranks:
        ranks.start(come_late, 2)
        for step in range(2):
            ranks.wait_mark(f"step {step}", ranks=[1])
            line = f"name='step {step}'"
            deadline = time.monotonic() + 20.0
            while not all(line in ranks.look()[rank].output for rank in (0, 2)):
                assert time.monotonic() < deadline, "nobody reports the late rank"
                ranks.pump(lambda: False, 0.02)
            ranks.open_gate(f"step {step}")
        outcomes = ranks.wait(20.0)
    assert [outcome.value for outcome in outcomes] == [12.0] * 3
    for rank in (0, 2):
        assert outcomes[rank].output.count("for rank(s) 1\n") == 2


def make_one_call_more(world: World) -> None:
    for step in range(3 if world.rank == 1 else 2):
        world.transport.barrier(name=f"step {step}")


def test_a_rank_that_calls_once_too_often() -> None:
    """F24: only it waits; it names the others, and the call that they did not make."""
    with Ranks(3, patience=1.0) as ranks:
        outcomes = ranks.start(make_one_call_more).wait(20.0)
        assert [outcome.returned for outcome in outcomes] == [True, False, True]
        error = outcomes[1].error
        assert error is not None
        assert error.type == "Stalled"
        assert error.fields["rank"] in (0, 2)
        assert (error.fields["state"], error.fields["name"]) == ("late", "step 2")
        assert 1.0 <= error.fields["elapsed"] < 10.0
