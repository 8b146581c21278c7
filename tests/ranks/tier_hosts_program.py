"""The ranks of one host, for tests and measurements across hosts: started once in each host.

    python tier_hosts_program.py '{"hosts": [[0, 1, 2], [3, 4]], "host": 1, "address": ..., ...}'

It imports torch once and forks its ranks. Each rank prints one line of JSON for each case.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import kadril
from kadril.transport.c10d import C10dTransport

COUNTERS = Path("/sys/class/net/net0/statistics")


# Of a packet on the wire.
PACKET_BYTES = 1514


def counters() -> tuple[int, int, int]:
    """Bytes that this host has sent and received, and those that TCP has sent again among them."""
    sent, received = (int((COUNTERS / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
    lines = Path("/proc/net/snmp").read_text().splitlines()
    names, numbers = (line.split() for line in lines if line.startswith("Tcp:"))
    return sent, received, int(numbers[names.index("RetransSegs")]) * PACKET_BYTES


def run_rank(job: dict[str, Any], rank: int) -> None:
    """One rank: all-reduce each size, count what crosses, and time it."""
    hosts = job["hosts"]
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(sum(map(len, hosts))),
        "LOCAL_RANK": str(hosts[job["host"]].index(rank)),
        "LOCAL_WORLD_SIZE": str(len(hosts[job["host"]])),
        "MASTER_ADDR": job["address"],
        "MASTER_PORT": str(job["port"]),
        "GLOO_SOCKET_IFNAME": "net0",
    }
    world = kadril.init(**job.get("options", {}))
    flat = None
    if job.get("gloo"):
        flat = world.transport.outer  # type: ignore[attr-defined]
        assert isinstance(flat, C10dTransport)
    lines = []
    for count in job["counts"]:
        array = torch.full((count,), float(rank + 1))
        world.transport.allreduce(array)  # first, since memory and connections are new
        good = sum(range(1, world.size + 1))
        assert array.unique().tolist() == [good], array.unique()
        times, gloo_times, crossed = [], [], (0, 0, 0)
        for _ in range(job.get("turns", 1)):
            array.fill_(float(rank + 1))
            world.transport.barrier()
            before = counters()
            began = time.perf_counter()
            world.transport.allreduce(array)
            times.append(time.perf_counter() - began)
            world.transport.barrier()
            after = counters()
            crossed = tuple(now - then for now, then in zip(after, before, strict=True))
            if flat is not None:
                world.transport.barrier()
                began = time.perf_counter()
                flat._group.allreduce([array]).wait()
                gloo_times.append(time.perf_counter() - began)
        lines.append(
            {
                "rank": rank,
                "host": job["host"],
                "kind": world.transport.kind,
                "bytes": 4 * count,
                "sent": crossed[0],
                "received": crossed[1],
                "sent_again": crossed[2],
                "times": times,
                "gloo_times": gloo_times,
            }
        )
    world.transport.barrier()
    kadril.shutdown()
    os.write(1, "".join(json.dumps(line) + "\n" for line in lines).encode())


def main() -> int:
    """Fork the ranks of this host, and wait for them."""
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    children = []
    for rank in job["hosts"][job["host"]]:
        child = os.fork()
        if child == 0:
            run_rank(job, rank)
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main())
