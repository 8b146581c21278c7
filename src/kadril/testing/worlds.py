"""The worlds of tests: what they are known by, and how a rank opens one."""

from __future__ import annotations

from collections.abc import Mapping
from socket import socket
from typing import TYPE_CHECKING, Any

from kadril.config import TRANSPORTS, Config
from kadril.testing.messages import Open, WorldKey

if TYPE_CHECKING:
    from kadril.world import World

__all__ = ["MAX_RANKS", "open_mpi_world", "open_world", "world_config", "world_key"]

MAX_RANKS = 16

# Short enough that a test whose ranks wait for each other in vain ends with `Stalled`, which says
# who waits for whom, before its own deadline ends it with a kill.
PATIENCE = 20.0
CONNECT_TIMEOUT = 30.0

# Where rank 0 of a world on several hosts listens; its host has no other programs.
PORT = 29400

# What worlds of many ranks may have.
POOL_TRANSPORTS = tuple(name for name in TRANSPORTS if name != "alone")


def world_key(transport: str, size: int, options: Mapping[str, object]) -> WorldKey:
    """Return the key of a world.

    Raises:
        ValueError: a size that the pool cannot have, or a transport it does not know.
    """
    if not 1 <= size <= MAX_RANKS:
        raise ValueError(f"the pool has worlds of 1 to {MAX_RANKS} ranks, not {size}")
    if transport.partition(":")[0] not in POOL_TRANSPORTS:
        raise ValueError(
            f"no transport {transport!r} in the pool; use one of {', '.join(POOL_TRANSPORTS)}, with"
            " a backend as in c10d:<backend>, mpi:openmpi or mpi:mpich"
        )
    return WorldKey(transport, size, tuple(sorted(options.items())))


def world_config(key: WorldKey, rank: int, *, is_apart: bool = False) -> Config:
    """Return the options of a rank of a test's world; not the environment's, so all are alike.

    Ranks that are really on several hosts (`is_apart`) need no labels to tell these apart.
    """
    transport = (
        key.transport.partition(":")[0] if key.transport.startswith("mpi") else key.transport
    )
    options: dict[str, Any] = {
        "transport": transport,
        "patience": PATIENCE,
        "connect_timeout": CONNECT_TIMEOUT,
        **dict(key.options),
    }
    hosts = options.pop("hosts", "round robin 2" if transport == "tiered" else "")
    if hosts and not is_apart:
        options["host_label"] = f"host {host_of(hosts, key.size, rank)}"
    return Config(**options)


def host_of(hosts: str, size: int, rank: int) -> int:
    """The host that a rank is to be on: "3+2" gives numbers of ranks, "round robin 2" of hosts.

    Raises:
        ValueError: numbers of ranks that do not add up.
    """
    if hosts.startswith("round robin "):
        return rank % int(hosts.removeprefix("round robin "))
    numbers = [int(number) for number in hosts.split("+")]
    if sum(numbers) != size:
        raise ValueError(f"hosts {hosts} have {sum(numbers)} ranks, and the world has {size}")
    return next(host for host in range(len(numbers)) if rank < sum(numbers[: host + 1]))


def open_world(request: Open, listener: socket | None) -> World:
    """Open a world through the rendezvous that the session has made, or at a port of rank 0."""
    from kadril.world import open_local, open_remote

    if request.address:
        return open_remote(
            request.rank,
            request.key.size,
            request.address,
            PORT,
            request.secret,
            job=request.job,
            config=world_config(request.key, request.rank, is_apart=True),
        )
    return open_local(
        request.rank,
        request.key.size,
        request.path,
        request.secret,
        job=request.job,
        generation=0,
        config=world_config(request.key, request.rank),
        listen_socket=listener,
    )


def open_mpi_world(request: Open, communicator: Any) -> World:
    """Open a world on the first ranks of an MPI job."""
    from kadril.world import open_mpi

    # Collective over its members only, so the other ranks of the job need not come.
    group = communicator.Get_group().Incl(list(range(request.key.size)))
    members = communicator.Create_group(group)
    group.Free()
    return open_mpi(members, job=request.job, config=world_config(request.key, request.rank))
