"""Flight records in the memory of ranks: where they are found, and whose they are."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from kadril.observe.flight_record import read_record
from kadril.observe.rank_stacks import ask_for_stacks
from kadril.observe.running_jobs import FoundRank, find_ranks_below

# Says when a process is as it is to be looked at, and waits until it has been.
RANK = """
import os, signal, sys
from kadril.transport.recording import record_in_memory

def wait():
    os.write(1, b"ready\\n")
    sys.stdin.read()
"""


@contextlib.contextmanager
def started(program: str, num_ready: int = 1, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program until it has said so often that it is ready; it ends with its stdin."""
    environment = {name: each for name, each in os.environ.items() if name[:7] != "KADRIL_"}
    with subprocess.Popen(
        [sys.executable, "-c", RANK + program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, **variables},
    ) as process:
        assert process.stdout is not None
        for _ in range(num_ready):
            assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate(timeout=20)
    assert process.returncode == 0


def below(process: subprocess.Popen[str]) -> list[FoundRank]:
    """Return the ranks that are found among a process and its children, by rank."""
    here = find_ranks_below(os.getpid())
    family = {each.pid for each in find_ranks_below(process.pid)} | {process.pid}
    return sorted((each for each in here if each.pid in family), key=lambda each: each.rank)


def test_a_rank_is_found_and_its_child_is_not_a_second_one() -> None:
    """A worker of a data loader has the descriptors of its rank."""
    program = """
record_in_memory(1, 3)
if os.fork() == 0:
    wait()
    os._exit(0)
wait()
os.wait()
"""
    with started(program, 2) as process:
        (found,) = below(process)
        assert (found.pid, found.rank, found.size) == (process.pid, 1, 3)
        assert found.record.stat().st_mode & 0o777 == 0o600
        record = read_record(found.record)
        stacks = ask_for_stacks({found.record: record})[found.record]
        assert " in wait" in stacks
        again = ask_for_stacks({found.record: record})[found.record]
        assert again.count(" in wait") == 1  # those of this time
        assert read_record(found.record) == record  # which the stacks lie behind


def test_a_forked_process_that_becomes_a_rank_has_a_record_and_stacks_of_its_own() -> None:
    program = """
record_in_memory(0, 2)
if os.fork() == 0:
    def wait_in_the_child():
        wait()
    record_in_memory(1, 2)
    wait_in_the_child()
    os._exit(0)
wait()
os.wait()
"""
    with started(program, 2) as process:
        ranks = below(process)
        assert [each.rank for each in ranks] == [0, 1]
        assert ranks[0].pid == process.pid != ranks[1].pid
        stacks = ask_for_stacks({each.record: read_record(each.record) for each in ranks})
        in_child = ["wait_in_the_child" in stacks[each.record] for each in ranks]
        assert in_child == [False, True]


def test_a_next_world_goes_on_in_the_record_under_its_rank() -> None:
    program = """
record_in_memory(1, 3)
before = os.listdir("/proc/self/fd")
record_in_memory(0, 2)
assert os.listdir("/proc/self/fd") == before
wait()
"""
    with started(program) as process:
        (found,) = below(process)
        assert (found.rank, found.size) == (0, 2)


def test_a_signal_of_the_program_stays_its_own() -> None:
    program = """
from kadril.transport.recording import STACK_SIGNAL
signal.signal(STACK_SIGNAL, lambda *_: None)
record_in_memory(1, 2)
wait()
"""
    with started(program) as process:
        (found,) = below(process)
        assert read_record(found.record).stack_signal == 0


def test_no_record_in_memory_where_nobody_could_wait_or_there_is_a_file() -> None:
    with started("record_in_memory(0, 1)\nwait()") as process:
        assert below(process) == []
    with started("record_in_memory(0, 2)\nwait()", KADRIL_RECORD_FILE="/nowhere") as process:
        assert below(process) == []


def test_jobs_at_the_same_time_are_told_apart() -> None:
    """Each has a launcher of its own, and all descend from this process."""
    program = """
import subprocess
ranks = [(0, 2), (1, 2)]
for rank, size in ranks:
    if os.fork() == 0:
        record_in_memory(rank, size)
        wait()
        os._exit(0)
for _ in ranks:
    os.wait()
"""
    lone = "if os.fork() == 0:\n    record_in_memory(0, 2)\n    wait()\n    os._exit(0)\nos.wait()"
    with started(program, 2) as first, started(program, 2) as second, started(lone) as third:
        launchers = [first, second, third]
        found = [each for process in launchers for each in below(process)]
        jobs = [each.job.rpartition("-")[2] for each in found]
        assert jobs == [str(each.pid) for each in (first, first, second, second, third)]
        assert [each.rank for each in found] == [0, 1, 0, 1, 0]
