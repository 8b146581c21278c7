"""F05, F06, F29, F45: the ways in which a rank may end or leave, other than by SIGKILL."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
import torch
from fault_clock import check_delays, note_fault

import kadril.errors
from kadril.testing import Ranks, faults
from kadril.world import World

BOUND = 1.0  # seconds from the fault to the exception on every survivor


def end_in_some_way(world: World, way: str) -> None:
    world.transport.barrier()
    if world.rank == 1:
        note_fault()
        if way == "exit 0":
            os._exit(0)
        if way == "exit 3":
            os._exit(3)
        if way == "abort":
            os.abort()
        if way == "segfault":
            import ctypes

            ctypes.string_at(8)
    for _ in range(100):
        world.transport.allreduce(torch.ones(10))


@pytest.mark.parametrize("way", ["exit 0", "exit 3", "abort", "segfault"])
def test_however_a_rank_ends_the_others_know(way: str) -> None:
    """F05: within a second, whatever their patience is."""
    with Ranks(3, patience=20.0) as ranks:
        outcomes = ranks.start(end_in_some_way, way).wait(20.0)
        for rank in (0, 2):
            error = outcomes[rank].error
            assert error is not None, outcomes[rank]
            assert (error.type, error.fields["rank"]) == ("PeerLost", 1)
        check_delays(outcomes, BOUND)


def leave_early(world: World) -> None:
    world.transport.barrier()
    if world.rank == 2:
        note_fault()
        world.close()
    else:
        world.transport.barrier(name="after")


def test_a_rank_that_shut_down_is_named() -> None:
    with Ranks(3, patience=20.0) as ranks:
        outcomes = ranks.start(leave_early).wait(20.0)
        for rank in (0, 1):
            error = outcomes[rank].error
            assert error is not None, outcomes[rank]
            assert (error.type, error.fields["rank"]) == ("PeerLost", 2)
            assert "has left the group" in error.message
        check_delays(outcomes, BOUND)


def revoke_while_others_wait(world: World) -> None:
    world.transport.barrier()
    if world.rank == 0:
        faults.gate("others wait")
        note_fault()
        world.transport.revoke("this test says so")
    else:
        faults.mark("about to wait")
    world.transport.barrier()


def test_revoke_wakes_everybody() -> None:
    """F06: a rank that cannot go on tells the others at once instead of letting them wait."""
    with Ranks(3, patience=20.0) as ranks:
        ranks.start(revoke_while_others_wait)
        ranks.wait_mark("about to wait", ranks=[1, 2]).wait_mark("others wait", ranks=[0])
        ranks.open_gate("others wait")
        outcomes = ranks.wait(10.0)
        for outcome in outcomes:
            assert outcome.error is not None
            assert (outcome.error.type, outcome.error.fields["rank"]) == ("Revoked", 0)
        check_delays(outcomes, BOUND)


def fork_and_call(world: World) -> str:
    x = torch.ones(3)
    world.transport.allreduce(x)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            world.transport.allreduce(torch.ones(3))
            told = "no error"
        except kadril.errors.ForkedError:
            told = "ForkedError"
        except BaseException as error:
            told = repr(error)
        os.write(writer, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    # The parent is unharmed, and the others did not take the child's end for its own.
    world.transport.allreduce(x)
    return f"{told} {x[0].item()}"


def test_a_forked_child_is_not_a_rank() -> None:
    with Ranks(2, patience=20.0) as ranks:
        outcomes = ranks.start(fork_and_call).wait(20.0)
        assert [outcome.value for outcome in outcomes] == ["ForkedError 4.0", "ForkedError 4.0"]


def wait_in_a_daemon_thread(world: World) -> None:
    world.transport.barrier()
    if world.rank == 0:
        waiter = threading.Thread(target=world.transport.barrier, daemon=True)
        waiter.start()
        sys.unraisablehook = lambda _: None
        threading.excepthook = lambda _: None
        world.close()
        waiter.join(10)
        assert not waiter.is_alive()


def test_a_pending_collective_does_not_hold_up_the_end() -> None:
    """F45: closing ends the call of another thread instead of waiting out its patience."""
    with Ranks(2, patience=60.0) as ranks:
        outcomes = ranks.start(wait_in_a_daemon_thread).wait(20.0)
        assert all(outcome.returned for outcome in outcomes), outcomes


def interrupted_wait(world: World) -> str:
    import signal

    world.transport.barrier()
    if world.rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            faults.mark("waits")
            world.transport.barrier(name="interrupted")
        except KeyboardInterrupt:
            return "KeyboardInterrupt"
        return "nothing"
    faults.gate("go on")
    world.transport.barrier(name="interrupted")
    return "nothing"


def test_ctrl_c_gets_out_of_a_wait() -> None:
    import signal

    with Ranks(2, patience=60.0) as ranks:
        ranks.start(interrupted_wait).wait_mark("waits", ranks=[0])
        ranks.wait_mark("go on", ranks=[1])
        # The kernel knows when the rank has gone to sleep in the barrier.
        asleep_in = Path(f"/proc/{ranks.outcomes[0].pid}/wchan")
        while "futex" not in asleep_in.read_text():
            ranks.pump(lambda: False, 0.01)
        ranks.signal(0, signal.SIGINT)
        ranks.pump(lambda: ranks.outcomes[0].finished is not None, 10.0)
        ranks.open_gate("go on")
        outcomes = ranks.wait(10.0)
        assert outcomes[0].value == "KeyboardInterrupt", outcomes[0]
        assert outcomes[1].error is not None
        assert (outcomes[1].error.type, outcomes[1].error.fields["rank"]) == ("Revoked", 0)
