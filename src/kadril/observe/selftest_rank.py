"""The program of a rank of the self-test; each part prints one line of JSON.

sum        both ranks all-reduce, and check every element
mismatch   they call with different shapes: both must be told, and the next call must work
death      rank 1 kills itself; rank 0 waits for it, and must be told who is gone
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from collections.abc import Callable

import numpy as np

import kadril
from kadril.errors import MismatchError, PeerLost
from kadril.world import World

__all__ = ["main"]

NUM_CALLS = 300
COUNT = 1 << 18  # 1 MiB of float32
NOTICE_SECONDS = 1.0
DEATH_DELAY = 0.05  # long enough that rank 0 is waiting when it happens


class Failed(Exception):  # noqa: N818 - reads as what happened
    """A part of the self-test failed."""


def check_sum(world: World) -> str:
    """Check that the ranks can add up, and return how long that takes."""
    array = np.arange(COUNT, dtype=np.float32) % 1024 + world.rank
    world.transport.allreduce(array)
    expected = np.arange(COUNT, dtype=np.float32) % 1024 * world.size + sum(range(world.size))
    if not np.array_equal(array, expected):
        num_wrong = np.count_nonzero(array != expected)
        raise Failed(f"rank {world.rank}: {num_wrong} of {COUNT} elements are wrong")
    small = np.zeros(1, dtype=np.float32)
    seconds = []
    for _ in range(NUM_CALLS):
        start = time.perf_counter()
        world.transport.allreduce(small)
        seconds.append(time.perf_counter() - start)
    return (
        f"{COUNT} elements are right over {world.transport.kind};"
        f" 4 bytes take {statistics.median(seconds) * 1e6:.1f} us"
    )


def check_mismatch(world: World) -> str:
    """Check that different shapes raise on both ranks, and that the next call works."""
    array = np.ones(2 + world.rank, dtype=np.float32)
    start = time.monotonic()
    try:
        world.transport.allreduce(array)
    except MismatchError:
        seconds = time.monotonic() - start
    else:
        raise Failed(f"rank {world.rank}: different shapes were added up")
    after = np.ones(1, dtype=np.float32)
    world.transport.allreduce(after)
    if after[0] != world.size:
        raise Failed(f"rank {world.rank}: the next call gave {after[0]}")
    return f"both ranks were told after {seconds * 1e3:.1f} ms, and went on"


def check_death(world: World) -> str:
    """Check that rank 0 is told in time when rank 1 dies."""
    # The launcher, seeing a dead rank, ends the other: not before it has had its say.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # All processes of a host read the same monotonic clock.
    moment = np.array([time.monotonic() + DEATH_DELAY])
    world.transport.broadcast(moment, 1)
    if world.rank == 1:
        time.sleep(max(moment[0] - time.monotonic(), 0))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        world.transport.barrier()
    except PeerLost as error:
        seconds = time.monotonic() - float(moment[0])
        if error.rank != 1:
            raise Failed(f"rank 1 was killed, and rank {error.rank} was said to be gone") from error
    else:
        raise Failed("rank 1 was killed, and rank 0 did not notice")
    if seconds > NOTICE_SECONDS:
        raise Failed(f"it took {seconds:.2f} s to notice that rank 1 was killed")
    return f"a killed rank was noticed, and named, after {seconds * 1e3:.1f} ms"


PARTS: dict[str, Callable[[World], str]] = {
    "sum": check_sum,
    "mismatch": check_mismatch,
    "death": check_death,
}


def main() -> None:
    """Do all parts until one fails."""
    world = kadril.init()
    for name, part in PARTS.items():
        try:
            said, failed = part(world), False
        except Failed as error:
            said, failed = str(error), True
        print(
            json.dumps({"part": name, "rank": world.rank, "failed": failed, "said": said}),
            flush=True,
        )
        if failed:
            break


if __name__ == "__main__":
    main()
