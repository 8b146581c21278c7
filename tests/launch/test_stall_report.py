"""A job that does not move says so by itself, through the launcher, once and on every transport.

Seen once: each rank logged its own line into a stream that a test runner captured, and nothing told
the user for five minutes.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest
from launch_playground import Launched, Playground, eventually

# Ranks 0 and 1 meet; rank 2 does something else for ever.
LATE = """
    import os, signal, time
    import numpy as np
    import kadril
    def do_something_else():
        time.sleep(1000)
    world = kadril.init()
    kadril.barrier()
    print("ready", flush=True)
    if world.rank == 2:
        do_something_else()
    world.transport.allreduce(np.ones(3), name="loss")
"""


SOON = {"KADRIL_STALL_WARNING": "1"}


def kadril(*words: str) -> str:
    """Return the output of a kadril command."""
    done = subprocess.run(
        [sys.executable, "-m", "kadril", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def job_of(launched: Launched) -> str:
    """Name of the job of a launcher, by its report."""
    found = re.search(rb"stacks: kadril dump (\w+)", launched.err)
    assert found is not None
    return found[1].decode()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_launcher_tells_which_ranks_wait_where(playground: Playground, transport: str) -> None:
    program = playground.write("late.py", LATE)
    launched = playground.start("-np", "3", "--transport", transport, program, env=SOON)
    launched.await_output(rb"stacks: kadril dump", timeout=60.0)
    report = launched.err.decode()
    assert re.search(r"the job does not move: ranks 0, 1 waited for \d+ s or more", report)
    assert re.search(r"kadril: +ranks 0, 1 waiting: in allreduce\(.*, for \d+ s", report)
    assert "name='loss'" in report
    assert "late.py:12" in report  # where the two wait
    assert re.search(r"kadril: +rank 2 running: in no collective since barrier", report)
    assert "late.py:6" in report  # where the other one is
    listed = kadril("ps")
    assert f"job {job_of(launched)}: 3 of 3 ranks here" in listed
    dumped = kadril("dump", job_of(launched)[:8])
    assert "last collectives" in dumped
    assert "in allreduce" in dumped
    assert 'late.py", line 12' in dumped
    launched.send(signal.SIGTERM)
    result = launched.finish()
    assert result.err.decode().count("the job does not move") == 1


@pytest.mark.long
@pytest.mark.parametrize("transport", ["shm", "tcp", "c10d"])
def test_it_takes_less_than_ten_seconds(playground: Playground, transport: str) -> None:
    program = playground.write("late.py", LATE)
    launched = playground.start("-np", "3", "--transport", transport, program)
    launched.await_output(rb"ready\n", 3, timeout=60.0)
    start = time.monotonic()
    launched.await_output(rb"stacks: kadril dump", timeout=30.0)
    assert time.monotonic() - start < 10.0
    launched.send(signal.SIGTERM)
    launched.finish()


def test_a_stopped_rank_is_named(playground: Playground) -> None:
    stops = LATE.replace("time.sleep(1000)", "os.kill(os.getpid(), signal.SIGSTOP)")
    program = playground.write("late.py", stops)
    launched = playground.start("-np", "3", "--grace", "0.2", program, env=SOON)
    launched.await_output(rb"stacks: kadril dump", timeout=60.0)
    assert b"rank 2 stopped: in no collective" in launched.err
    launched.send(signal.SIGTERM)
    launched.finish()


# Rank 1 waits for rank 0 for longer than it takes to report it.
ON_PURPOSE = """
    import time
    import numpy as np
    import kadril
    world = kadril.init()
    if world.rank == 0:
        time.sleep(4)
    world.transport.allreduce(np.ones(3), name="loss")
"""


@pytest.mark.parametrize("flag", ["--stall-check", "--no-stall-check"])
def test_a_job_that_waits_on_purpose_can_say_so(playground: Playground, flag: str) -> None:
    """Benchmarks whose rank 0 waited for its driver told of each job that it did not move."""
    program = playground.write("on_purpose.py", ON_PURPOSE)
    result = playground.run("-np", "2", flag, program, env=SOON)
    assert result.code == 0
    assert (b"the job does not move" in result.err) == (flag == "--stall-check")


def test_nothing_is_listed_after_the_end(playground: Playground) -> None:
    program = playground.write(
        "job.py", "import os, kadril; kadril.init(); print(os.environ['KADRIL_JOB'])"
    )
    result = playground.run("-np", "2", program)
    job = result.out.split()[0].decode()
    assert eventually(lambda: job not in kadril("ps"))
