"""The program of a rank: time all settings in turns, and leave what came out.

python rank.py DIRECTORY --rounds N        under mpirun, on two ranks
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness.program import leave_answer, read_words
from harness.setting import Setting, time_settings
from mpi4py import MPI
from ways import Gloo, Kadril, MpiNumpy

import kadril
from kadril.nn import DistributedConv2d
from kadril.partition import Partition, world_partition

NUM_LAYERS = 64
NUMS_OF_CHANNELS = (4, 5, 6, 7, 8)  # the first of them finds torch's own convolutions cold


def main() -> None:
    """Measure everything."""
    words = read_words()
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    rank = MPI.COMM_WORLD.rank
    pin([cores[rank % len(cores)]])
    world = kadril.init(transport="shm")
    store = dist.FileStore(str(Path(words.directory) / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    everyone = world_partition(world)
    P_rows = everyone.create_cartesian_topology_partition([1, 1, 2, 1])
    P_batch = everyone.create_cartesian_topology_partition([2, 1, 1, 1])
    ways = [Kadril(P_rows, P_batch), MpiNumpy(MPI.COMM_WORLD), Gloo(dist.group.WORLD)]
    tables = {
        "conv": conv_settings(P_rows, rank, cores),
        "sum of 8 MiB": [sum_setting(way, 2 << 20, 20) for way in ways],
        "sum of 4 KiB": [sum_setting(way, 1 << 10, 200) for way in ways],
        "halo of 128 KiB": [halo_setting(way) for way in ways],
        "repartition of 32 MiB": repartition_settings(ways[0]),
    }
    samples = {}
    for workload, settings in tables.items():
        say(rank, workload)
        samples[workload] = time_settings(
            settings, num_rounds=words.rounds, barrier=world.transport.barrier
        )
    answer: dict[str, Any] = {"samples": samples, "setup": measure_setups(P_rows, world)}
    leave_answer(words.directory, rank, answer)
    dist.destroy_process_group()
    kadril.shutdown()


def pin(cores: list[int]) -> None:
    """Hold all threads of this process on some cores."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def conv_settings(P_rows: Partition, rank: int, cores: list[int]) -> list[Setting]:
    """Forward and backward pass of one convolution: on one rank with one or two threads, on two."""
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(16, 16, 3, padding=1)
    twin = DistributedConv2d.of(layer, P_rows)
    whole = torch.randn(8, 16, 256, 256)
    block = whole.chunk(2, dim=2)[rank].clone()

    def step(module: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
        leaf = x.requires_grad_()
        grad = torch.ones_like(x)

        def call() -> None:
            module(leaf).backward(grad)

        return call

    def nothing() -> None:
        pass

    def on_one(num_threads: int) -> Setting:
        def enter() -> None:
            pin(cores[:num_threads])
            torch.set_num_threads(num_threads)

        def leave() -> None:
            torch.set_num_threads(1)
            pin([cores[rank % len(cores)]])

        name = f"torch, 1 rank, {num_threads} thread{'s' if num_threads > 1 else ''}"
        if rank:  # it sleeps in the next barrier meanwhile
            return Setting(name, nothing)
        return Setting(name, step(layer, whole), enter=enter, leave=leave)

    return [Setting("kadril, 2 ranks", step(twin, block)), on_one(1), on_one(2)]


def sum_setting(way: Kadril | MpiNumpy | Gloo, count: int, num_calls: int) -> Setting:
    """An all-sum-reduce of some floats."""
    x = torch.ones(count, requires_grad=True)
    check_equal(way.all_sum_reduce(x), 2 * x)
    return Setting(
        way.name,
        lambda: way.all_sum_reduce(x),
        num_calls=num_calls,
        num_warm_ups=max(1, num_calls // 5),
    )


def halo_setting(way: Kadril | MpiNumpy | Gloo) -> Setting:
    """A row of 128 KiB from each side."""
    x = torch.ones(1, 16, 4, 2048, requires_grad=True)
    expected = torch.ones(1, 16, 6, 2048)
    expected[:, :, 0 if MPI.COMM_WORLD.rank == 0 else -1] = 0
    check_equal(way.halo_exchange(x), expected)
    # What lies between turns leaves caches cold, for some ten calls in each way.
    return Setting(way.name, lambda: way.halo_exchange(x), num_calls=200, num_warm_ups=40)


def repartition_settings(way: Kadril) -> list[Setting]:
    """32 MiB from rows to batches, beside a plain copy of as many bytes by both ranks."""
    x = torch.ones(8, 16, 128, 256)
    check_equal(way.to_batch(x), torch.ones(4, 16, 256, 256))
    return [
        Setting("kadril", lambda: way.to_batch(x), num_calls=20, num_warm_ups=4),
        Setting("copy", x.clone, num_calls=20, num_warm_ups=4),
    ]


def measure_setups(P_rows: Partition, world: kadril.World) -> list[dict[str, float]]:
    """Time the set-up of layers of several kinds, none of which was there before."""
    return [measure_setup(P_rows, world, num_channels) for num_channels in NUMS_OF_CHANNELS]


def measure_setup(P_rows: Partition, world: kadril.World, num_channels: int) -> dict[str, float]:
    """Seconds to make layers, and for a first and a second call of each."""
    x = torch.ones(1, num_channels, 16, 16)
    world.transport.barrier()
    start = time.perf_counter()
    layers = [
        DistributedConv2d(P_rows, num_channels, num_channels, 3, padding=1)
        for _ in range(NUM_LAYERS)
    ]
    made = time.perf_counter() - start
    times = []
    for _ in range(2):
        world.transport.barrier()
        start = time.perf_counter()
        for layer in layers:
            layer(x)
        times.append(time.perf_counter() - start)
    return {"make": made, "first": times[0], "second": times[1]}


def check_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    """A wrong result is not worth measuring."""
    if not torch.equal(found, expected):
        raise SystemExit("a way to move data gives wrong results")


def say(rank: int, text: str) -> None:
    """Tell what happens."""
    if rank == 0:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
