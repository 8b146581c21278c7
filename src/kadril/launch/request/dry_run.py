"""`kadril run --dry-run`: what would be run on each host, so that ranks can be started by hand.

Secrets are not shown: who starts ranks by hand makes one and copies it to every host.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from kadril.launch.local.program import with_python
from kadril.launch.local.rank_environment import rank_environment
from kadril.launch.mapping.placement import HostPlan, Placement
from kadril.launch.mapping.rank_file import PlacedRank, format_slots
from kadril.launch.options import RunOptions
from kadril.launch.remote.ssh import agent_command

__all__ = ["describe_run"]

# Stands in for a port that only rank 0's host could choose.
PORT = 29400

SECRET_FILE = "$HOME/kadril.secret"  # noqa: S105 - its name


def describe_run(options: RunOptions, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines: how agents are started, then a command for each rank."""
    placement = options.placement or this_host(options.num_ranks)
    first = placement.hosts[0]
    port = options.ssh.port or PORT
    if len(placement.hosts) == 1:
        name = "127.0.0.1"
    else:
        name = socket.gethostname() if first.is_here else first.name.rpartition("@")[2]
    rendezvous = f"tcp:{name}:{port}"
    if placement.needs_ssh:
        yield "# kadril run starts an agent on each host, which starts the ranks:"
        for host in placement.hosts:
            yield shlex.join(agent_command(host.name, host.is_here, options.ssh))
        yield ""
    yield "# by hand, first a secret, the same file on every host, that only you can read:"
    yield f'(umask 077 && head -c 32 /dev/urandom > "{SECRET_FILE}")'
    for host in placement.hosts:
        if not host.is_here:
            yield f'scp -p "{SECRET_FILE}" {host.name}:'
    yield f"# then all ranks; port {port} of {name} must be free"
    prepared = rank_environment(options, environment)
    added = {
        name: value for name, value in prepared.variables.items() if environment.get(name) != value
    }
    for host in placement.hosts:
        yield f"# on {host.name}"
        for local_rank, placed in enumerate(host.ranks):
            own = added | prepared.of_rank[placed.rank]
            yield rank_line(options, host, local_rank, placed, rendezvous, own)


def this_host(num_ranks: int) -> Placement:
    """Return the placement of ranks that have no hosts."""
    name = socket.gethostname()
    return Placement.of([PlacedRank(rank, name, ()) for rank in range(num_ranks)])


def rank_line(
    options: RunOptions,
    host: HostPlan,
    local_rank: int,
    placed: PlacedRank,
    rendezvous: str,
    variables: Mapping[str, str],
) -> str:
    """Return the command of one rank, for a shell on its host."""
    identity = {
        "KADRIL_JOB": "by-hand",
        "KADRIL_RANK": str(placed.rank),
        "KADRIL_SIZE": str(options.num_ranks),
        "KADRIL_LOCAL_RANK": str(local_rank),
        "KADRIL_LOCAL_SIZE": str(len(host.ranks)),
        "KADRIL_RENDEZVOUS": rendezvous,
    }
    if options.ssh.interface:
        identity["KADRIL_INTERFACE"] = options.ssh.interface
    words = [shlex.quote(f"{name}={value}") for name, value in {**variables, **identity}.items()]
    words.append(f'KADRIL_SECRET_FILE="{SECRET_FILE}"')
    note = f"  # cores {format_slots(placed.slots)}" if placed.slots else ""
    command = shlex.join(with_python(options.command))
    return f"cd {shlex.quote(os.fspath(Path.cwd()))} && env {' '.join(words)} {command} &{note}"
