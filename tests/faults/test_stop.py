"""F03, F04, F07, F08: a rank that is stopped or slow is named, and is not taken for dead."""

from __future__ import annotations

import ctypes
import signal
import time

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
    world.transport.barrier()
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


def hold_the_gil(world: World) -> float:
    world.transport.barrier()
    if world.rank == 1:
        # PyDLL keeps the GIL, so no Python code of this process runs meanwhile.
        ctypes.PyDLL(None).usleep(1_500_000)
    x = torch.ones(1)
    world.transport.allreduce(x)
    return float(x)


def test_a_held_gil_is_late_not_dead() -> None:
    with Ranks(2, patience=20.0) as ranks:
        outcomes = ranks.start(hold_the_gil).wait(20.0)
        assert [outcome.value for outcome in outcomes] == [2.0, 2.0]
