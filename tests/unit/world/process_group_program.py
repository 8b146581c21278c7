"""Programs that start their ranks by `torch.multiprocessing` and call `init_process_group()`.

    process_group_program.py <directory>

Two ranks go through each scenario together; each writes what it saw to a file of the directory.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which the first optimizer of each rank would import
import torch.distributed as dist
import torch.multiprocessing as mp

import kadril
import kadril.torch as hvd
from kadril.sharded import ShardedOptimizer
from kadril.world import World

SIZE = 2
PORTS = 4


def make_group(way: str, rank: int, directory: str, ports: list[int]) -> None:
    """Make the default process group in one of the ways that torch has."""
    options: dict[str, Any] = {"rank": rank, "world_size": SIZE}
    if way == "tcp":
        options["init_method"] = f"tcp://127.0.0.1:{ports[0]}"
    elif way == "file":
        options["init_method"] = f"file://{directory}/store"
    elif way == "store":
        store = dist.TCPStore("127.0.0.1", ports[1], SIZE, is_master=rank == 0)
        options["store"] = dist.PrefixStore("theirs", store)
    else:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[2])}
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(SIZE), **place)
        options = {"init_method": "env://"}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60), **options)


def total(world: World) -> float:
    """The sum of rank + 1 over all ranks."""
    tensor = torch.tensor([world.rank + 1.0])
    world.transport.allreduce(tensor)
    return float(tensor)


def look(**options: Any) -> list[Any]:
    """Open a world, use it, and close it."""
    with kadril.init(**options) as world:
        return [world.rank, world.size, world.transport.kind, world.source, total(world)]


def failure(call: Callable[[], object]) -> str:
    """The error that a call raises."""
    try:
        call()
    except kadril.KadrilError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def in_child(call: Callable[[], str]) -> str:
    """Return the result of a call in a child made by fork."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if child == 0:
            theirs.sendall(call().encode())
            os._exit(0)
        os.waitpid(child, 0)
        theirs.close()
        return ours.recv(4096).decode()


def ways(rank: int, directory: str, ports: list[int]) -> dict[str, Any]:
    """Every way to make a group; worlds one after the other, and the group gone before the last."""
    facts: dict[str, Any] = {}
    for way in ("tcp", "file", "store", "env"):
        make_group(way, rank, directory, ports)
        seen = [look(), look(transport="c10d"), look(host_label=f"host {rank}")]
        world = kadril.init(transport="c10d" if way == "tcp" else "auto")
        again = kadril.init(config=world.config) is world
        dist.barrier()
        dist.destroy_process_group()
        again = again and kadril.init(config=world.config) is world
        facts[way] = [*seen, total(world), again]
        kadril.shutdown()
    return facts


def optimizers(rank: int, directory: str, ports: list[int]) -> dict[str, Any]:
    """Step optimizers that users build on a world: gradients of 1 and 2 are averaged to 1.5."""
    make_group("tcp", rank, directory, ports)
    results = {}
    for name in ("hvd", "sharded"):
        hvd.init()
        parameter = torch.nn.Parameter(torch.zeros(4))
        if name == "hvd":
            sgd = torch.optim.SGD([parameter], lr=1.0)
            optimizer: Any = hvd.DistributedOptimizer(sgd, named_parameters=[("p", parameter)])
        else:
            optimizer = ShardedOptimizer(
                [parameter], torch.optim.SGD, lr=1.0, reduce_gradients=True
            )
        (parameter.sum() * (rank + 1)).backward()
        optimizer.step()
        summed = hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Sum)
        results[name] = [hvd.size(), parameter.tolist(), float(summed)]
        hvd.shutdown()
    dist.destroy_process_group()
    return results


def contradictions(rank: int, directory: str, ports: list[int]) -> dict[str, Any]:
    """Variables that say half, or something else; a world that came too early; a child by fork."""
    facts: dict[str, Any] = {}
    hvd.init()
    if rank == 1:  # which counts its generations differently from here on
        hvd.shutdown()
        hvd.init()
    make_group("tcp", rank, directory, ports)
    parameter = torch.nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([parameter], lr=1.0)
    facts["early"] = [
        failure(kadril.current),
        failure(kadril.init),
        failure(hvd.init),
        failure(lambda: hvd.DistributedOptimizer(sgd, named_parameters=[("p", parameter)])),
        failure(lambda: ShardedOptimizer([parameter], torch.optim.SGD, lr=1.0)),
    ]
    hvd.shutdown()
    facts["after it"] = look()
    os.environ["RANK"] = str(rank)
    facts["half told"] = look()
    os.environ.update(WORLD_SIZE="1", RANK="0", MASTER_ADDR="127.0.0.1")
    facts["started alone"] = look()
    os.environ.update(WORLD_SIZE="4", RANK=str(rank))
    facts["other size"] = failure(kadril.init)
    facts["by request"] = look(rendezvous="torch")
    facts["explicit"] = look(rank=0, size=1)[1:3]
    os.environ.update(WORLD_SIZE="2", RANK=str(1 - rank))
    facts["other rank"] = failure(kadril.init)
    os.environ["RANK"] = str(rank)
    facts["no port"] = look()
    kadril.shutdown()
    facts["in a child"] = in_child(lambda: failure(kadril.init))
    dist.destroy_process_group()
    return facts


def missing(rank: int, directory: str, ports: list[int]) -> dict[str, Any]:
    """A rank that never calls init()."""
    make_group("tcp", rank, directory, ports)
    error = failure(lambda: kadril.init(connect_timeout=0.5)) if rank == 0 else ""
    dist.barrier()
    fake_error = ""
    dist.destroy_process_group()
    if rank == 0:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        fake_error = failure(kadril.init)
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        os.environ["RANK"] = "0"
        return {"error": error, "fake": fake_error, "one": look()}
    return {}


def forked(rank: int, directory: str, ports: list[int]) -> dict[str, Any]:
    """A rank that its parent made by fork."""
    error = failure(kadril.init)
    if error:
        return {"error": error}
    kadril.shutdown()
    make_group("tcp", rank, directory, ports)
    facts = {"world": look()}
    dist.destroy_process_group()
    return facts


SCENARIOS = {each.__name__: each for each in (ways, optimizers, contradictions, missing, forked)}


def run(rank: int, scenario: str, directory: str, ports: list[int]) -> None:
    torch.set_num_threads(1)
    facts = SCENARIOS[scenario](rank, directory, ports)
    Path(directory, f"{scenario}.{rank}.json").write_text(json.dumps(facts))


def free_ports() -> list[int]:
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(PORTS)]
    ports = [each.getsockname()[1] for each in socks]
    for each in socks:
        each.close()
    return ports


def play(scenario: str, directory: str) -> None:
    """Start the ranks of a scenario, and wait for their end."""
    if scenario != "forked":
        # Ranks that `spawn` starts load torch again: one scenario shows that they are the same.
        method = "spawn" if scenario == "optimizers" else "fork"
        arguments = (scenario, directory, free_ports())
        mp.start_processes(run, arguments, nprocs=SIZE, start_method=method)
        return
    kadril.init()
    results = []
    for is_open in (True, False):
        if not is_open:
            kadril.shutdown()
        arguments = (scenario, directory, free_ports())
        mp.start_processes(run, arguments, nprocs=SIZE, start_method="fork")
        files = [Path(directory, f"{scenario}.{rank}.json") for rank in range(SIZE)]
        results.append([json.loads(each.read_text()) for each in files])
    for rank, seen in enumerate(zip(*results, strict=True)):
        Path(directory, f"{scenario}.{rank}.json").write_text(json.dumps(seen))


def main(directory: str) -> None:
    """Play all scenarios; `forked` comes last, since it opens a world in this process."""
    for scenario in SCENARIOS:
        try:
            play(scenario, directory)
        except Exception:
            Path(directory, f"{scenario}.error").write_text(traceback.format_exc())


if __name__ == "__main__":
    main(*sys.argv[1:])
