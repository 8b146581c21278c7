"""A program as users write it: init, a sum, shutdown, again; writes what it saw to a directory.

    world_program.py <directory> <transport>=<cycles> ...

Torch is loaded only for c10d and `group=gloo`, which makes the default process group of
torch.distributed: it takes most of the time of such a program. `end=kill` ends it with rank 1
killed by itself, and the others leaving without shutdown.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import kadril


def usage() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))  # noqa: PTH208


def cycles(transport: str, num_cycles: int) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    usages = []
    for _ in range(num_cycles):
        with kadril.init(transport=transport) as world:
            summed = np.full(3, float(world.rank + 1))
            world.transport.allreduce(summed)
            facts = {
                "rank": kadril.rank(),
                "size": kadril.size(),
                "local_rank": kadril.local_rank(),
                "local_size": kadril.local_size(),
                "cross_rank": kadril.cross_rank(),
                "cross_size": kadril.cross_size(),
                "kind": world.transport.kind,
                "source": world.source,
                "sum": summed.tolist(),
                "hub": (world.hub.rank, world.hub.size),
            }
        usages.append(usage())
    # Not equality: the first cycles may start pools of torch that stay, and gloo closes its sockets
    # a moment after close(). Yet one descriptor or thread left by each cycle shows.
    is_flat = [min(column[-3:]) <= max(column[:3]) for column in zip(*usages, strict=True)]
    facts["is_flat"] = all(is_flat) or usages
    return facts


def main(directory: str, *plans: str) -> None:
    facts = []
    for plan in plans:
        transport, _, num_cycles = plan.partition("=")
        if transport == "group":
            import torch.distributed

            torch.distributed.init_process_group(num_cycles)
        elif transport == "end":
            world = kadril.init()
            world.transport.barrier()
            if world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        else:
            facts.append(cycles(transport, int(num_cycles)))
    rank = os.environ.get("TEST_RANK") or str(facts[-1]["rank"])
    Path(directory, f"{rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
