"""Remains of ranks that failed while their job goes on: none, after a second."""

from __future__ import annotations

import re
import resource
from collections import Counter
from pathlib import Path

from launch_playground import Playground, eventually

# Rank 1 starts a process and fails, in each of the first generations.
FAILS = """
    import os, subprocess, sys
    import numpy as np
    import kadril
    from kadril.shared_engine.basics import init, rank
    from kadril.shared_engine.elastic import ObjectState, run

    def train(state):
        generation = int(os.environ["KADRIL_GENERATION"])
        kadril.barrier()
        print("trains", generation, flush=True)
        if rank() == 1:
            while not os.path.exists(f"{sys.argv[1]}/fail.{generation}"):
                kadril.allreduce(np.zeros(1), name="wait")
            child = subprocess.Popen(["sleep", "1000"])
            print("child", child.pid, flush=True)
            os._exit(3)
        while True:
            kadril.allreduce(np.zeros(1), name="wait")
            state.commit()

    init()
    run(train)(ObjectState(lambda value: value, rank))
"""


def descriptors(pid: int) -> Counter[str]:
    """Descriptors of a process, by their kind."""
    links = [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()]
    return Counter(re.sub(r"\d+", "", str(link)) for link in links)


def children(pid: int) -> list[int]:
    """Children of a process, the dead that nobody has reaped included."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_rank_that_failed_leaves_nothing_behind(playground: Playground) -> None:
    """Children of a failed rank lived to the end of the job; so did its process and pipes."""
    program = playground.write("fails.py", FAILS)
    flags = ["-np", "2", "--min-np", "2", "--spares", "0", "--no-fork-server"]
    launched = playground.start(*flags, program, playground.directory)
    launched.await_output(rb"trains 0\n", 2, timeout=60.0)

    def held() -> tuple[Counter[str], int]:
        return descriptors(launched.pid), len(children(launched.pid))

    at_first = held()
    for generation in (0, 1):
        (playground.directory / f"fail.{generation}").touch()
        launched.await_output(rb"trains %d\n" % (generation + 1), 2, timeout=60.0)
    left = [int(pid) for pid in re.findall(rb"child (\d+)", launched.out)]
    assert len(left) == 2
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
    assert eventually(lambda: held() == at_first), (at_first, held())
    launched.await_output(rb"ended process \d+ left behind by rank 1: sleep 1000", 2)
    # A launcher that is killed now has told its guardian which ranks are left.
    launched.process.kill()
    assert eventually(lambda: not playground.processes())


def test_a_launcher_without_descriptors_goes_on(playground: Playground) -> None:
    """The launcher ended with an OSError, and the rank that lived with it."""
    program = playground.write("fails.py", FAILS)
    flags = ["-np", "2", "--min-np", "1", "--spares", "0", "--no-fork-server"]
    flags += ["--blacklist-cooldown-range", "1", "1"]
    launched = playground.start(*flags, program, playground.directory)
    launched.await_output(rb"trains 0\n", 2, timeout=60.0)
    limits = resource.prlimit(launched.pid, resource.RLIMIT_NOFILE)
    # Numbers from this one on cannot be had, and those below are in use.
    resource.prlimit(launched.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    (playground.directory / "fail.0").touch()
    launched.await_output(rb"cannot start another worker: .*Too many open files", timeout=60.0)
    launched.await_output(rb"generation 1: 1 ranks", timeout=60.0)
    resource.prlimit(launched.pid, resource.RLIMIT_NOFILE, limits)
    launched.await_output(rb"generation 2: 2 ranks, 1 of them new", timeout=60.0)
    launched.process.kill()
    assert eventually(lambda: not playground.processes())
