"""The report of a job that does not move, where ranks die and the others go on without them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from launch_playground import Playground, eventually

# Place 0 is killed within a call, and the others go on. Then one of them comes late for ever.
KILLED_IN_A_CALL = """
    import os, signal, sys, time
    from pathlib import Path
    import numpy as np
    import kadril
    from kadril.observe.flight_record import RecordError, read_record
    from kadril.shared_engine.basics import init, rank
    from kadril.shared_engine.elastic import ObjectState, run

    def do_something_else():
        time.sleep(1000)

    def await_call_of(path):
        while True:
            try:
                record = read_record(path)
                if record.under_way:
                    return record.pid
            except (OSError, RecordError):
                pass
            time.sleep(0.01)

    def train(state):
        world = kadril.current()
        if os.environ["KADRIL_GENERATION"] == "0":
            if world.rank == 1:
                record = Path(os.environ["KADRIL_RECORD_FILE"]).with_name("rank-0.record")
                os.kill(await_call_of(record), signal.SIGKILL)
            world.transport.allreduce(np.ones(3), name="killed")
            kadril.barrier()  # nobody passes this one
        print("goes on", flush=True)
        if world.rank == 1:
            do_something_else()
        world.transport.allreduce(np.ones(3), name="late")

    init()
    run(train)(ObjectState(lambda value: value, rank))
"""

SOON = {"KADRIL_STALL_WARNING": "1"}


@pytest.mark.parametrize("flags", ["--no-replace", "--spares 0"])
def test_a_rank_that_died_in_a_call_does_not_wait(playground: Playground, flags: str) -> None:
    """Seen once: its record said that it still waits, so a later stall was not reported any more.

    The last rank has become rank 0, which the report has to call it.
    """
    program = playground.write("killed.py", KILLED_IN_A_CALL)
    words = ["-np", "3", "--min-np", "1", *flags.split(), program]
    launched = playground.start(*words, env=SOON)
    launched.await_output(rb"stacks: kadril dump", timeout=60.0)
    report = launched.err.decode()
    assert re.findall(r"the job does not move: (.*) waited", report) in (["rank 0"], ["ranks 0, 2"])
    told = "".join(line for line in report.splitlines() if line.startswith("kadril:   "))
    assert "name='late'" in told
    assert "name='killed'" not in told
    assert "dead" not in told
    launched.send(signal.SIGKILL)
    launched.finish()


def test_a_spare_process_does_not_show_what_its_predecessor_did(playground: Playground) -> None:
    """Until it joined, `kadril ps` took the record of the dead rank at its place for its own.

    Later it called that process a rank that starts, and told of "4 of 3 ranks".
    """
    program = playground.write("killed.py", KILLED_IN_A_CALL)
    words = ["-np", "3", "--min-np", "3", "--verbose", program]
    launched = playground.start(*words, env={"KADRIL_STALL_WARNING": "5"})
    launched.await_output(rb"generation 1: 3 ranks, 1 of them new", timeout=60.0)
    launched.await_output(rb"worker 0 is process", 2, timeout=60.0)

    def listed() -> str:
        command = [sys.executable, "-m", "kadril", "ps"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        found = re.search(rf"job \w+: .*{re.escape(program)}.*\n((  process .*\n)+)", done.stdout)
        return found[0] if found else ""

    assert eventually(lambda: listed().count("  process ") == 4, timeout=60.0)
    assert "name='killed'" not in listed()
    assert eventually(lambda: listed().count("name='late'") == 2, timeout=60.0)
    lines = listed().splitlines()
    assert ": 3 of 3 ranks here, 1 spare process: " in lines[0]
    names = sorted(re.findall(r"^  process \d+  (rank \d|\w+ process)", "\n".join(lines), re.M))
    assert names == ["rank 0", "rank 1", "rank 2", "spare process"]
    job = lines[0].split()[1].rstrip(":")
    command = [sys.executable, "-m", "kadril", "dump", job]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert ": 3 of 3 ranks here, 1 spare process: " in dumped
    assert "spare process takes the place of a rank that fails" in dumped
    assert "rank 3" not in dumped
    launched.await_output(rb"stacks: kadril dump", timeout=60.0)
    told = [line for line in launched.err.decode().splitlines() if "spare process" in line]
    assert told == ["kadril:   spare process takes the place of a rank that fails"]
    assert b"rank 3" not in launched.err
    launched.send(signal.SIGKILL)
    launched.finish()
