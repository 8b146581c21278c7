"""The launcher's report of ranks that wait for named requests says which, in which set and line.

It said nothing: where every rank had asked for something, the engine's own thread was in no call,
and over networks in many short ones. Where one had not, it told of the engine's own calls.
"""

from __future__ import annotations

import re
import signal

import pytest
from launch_playground import Playground
from test_stall_report import SOON, job_of, kadril

# A thread that has asked for something may do so again, so nobody knows that this is a deadlock.
NAMES = """
    import threading, time
    import torch
    import kadril.torch as hvd
    hvd.init()
    def ask_and_sleep():
        hvd.allreduce(torch.ones(1), name="warm-up")
        time.sleep(1000)
    threading.Thread(target=ask_and_sleep, daemon=True).start()
    hvd.allreduce(torch.ones(3), name="loss" if hvd.rank() == 0 else "accuracy")
"""

# Rank 2 does something else for ever: the engines of the others wait for it in calls of their own.
SETS = """
    import time
    import torch
    import kadril.torch as hvd
    hvd.init(process_sets="dynamic")
    pair = hvd.add_process_set([0, OTHER])
    if hvd.rank() == 0:
        hvd.allreduce(torch.ones(3), name="of the pair", process_set=pair)
    if hvd.rank() == 1:
        hvd.barrier()
    time.sleep(1000)
"""

BOTH = pytest.mark.parametrize("transport", ["shm", "tcp"])


@BOTH
def test_names_that_do_not_meet(playground: Playground, transport: str) -> None:
    program = playground.write("names.py", NAMES)
    launched = playground.start("-np", "2", "--transport", transport, program, env=SOON)
    launched.await_output(rb"stacks: kadril dump", timeout=60.0)
    report = launched.err.decode()
    assert "ranks 0, 1 waited for" in report
    for rank, name in enumerate(["loss", "accuracy"]):
        wait = (
            rf"rank {rank} waiting: in allreduce\(float32\[3\], average, name='{name}'\) of the"
            r" process set of ranks 0, 1 at \S*names.py:10, for \d+ s"
        )
        assert re.search(wait, report)
        assert re.search(wait, kadril("ps"))
        assert re.search(wait, kadril("dump", job_of(launched)))
    assert "engine" not in kadril("dump", job_of(launched)).partition("stacks")[0]
    launched.send(signal.SIGTERM)
    # Short calls of the engine over a network are no sign that anything has moved.
    assert launched.finish().err.decode().count("the job does not move") == 1


@pytest.mark.parametrize(("transport", "other"), [("shm", 2), ("tcp", 2), ("tcp", 1)])
def test_a_rank_that_asks_for_nothing(playground: Playground, transport: str, other: int) -> None:
    """Ranks 0 and 1 may wait for each other: on shared memory, that would be raised as such."""
    program = playground.write("sets.py", SETS.replace("OTHER", str(other)))
    launched = playground.start("-np", "3", "--transport", transport, program, env=SOON)
    launched.await_output(rb"stacks: kadril dump", timeout=60.0)
    report = launched.err.decode()
    assert re.search(
        r"rank 0 waiting: in allreduce\(float32\[3\], average, name='of the pair'\) of the process"
        rf" set of ranks 0, {other} at \S*sets.py:8, for \d+ s",
        report,
    )
    assert re.search(
        r"rank 1 waiting: in barrier\(unnamed\) of the process set of ranks 0, 1, 2 at"
        r" \S*sets.py:10, for \d+ s",
        report,
    )
    assert re.search(r"rank 2 running: in no collective.*sets.py:11", report)
    assert "engine" not in report.partition("stacks")[0]
    launched.send(signal.SIGTERM)
    launched.finish()
