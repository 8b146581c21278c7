"""`kadril rankfile 4x3 host1,host2,host3 > 4x3.rf`: write a rank file.

Hosts are ordered by rack: all of the first rack, then all of the second.

    kadril rankfile 2x2x2 r1h1,r1h2,r2h1,r2h2          2 ranks, 2 hosts in a rack, 2 racks

The order of ranks, for 2x3:

    contiguous     host1: 0 1    host2: 2 3    host3: 4 5       the default
    ddl            host1: 0 3    host2: 1 4    host3: 2 5       as DDL's ddlrun had it

Contiguous is the default since sums then have the bits that one host gives (with a power of two of
ranks on each host), and since rings of other libraries cross each link once. Kadril takes hosts and
tiers from where ranks are, and is as fast in DDL's order, which suits programs that count on it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from kadril.errors import ConfigError
from kadril.launch.mapping.cpu_topology import this_topology
from kadril.launch.mapping.dimensions import format_dimensions, parse_dimensions
from kadril.launch.mapping.rank_file import PlacedRank, Slot, format_rank_file

__all__ = ["divide_cores", "main", "place_ranks"]

ORDERS = ("contiguous", "ddl")


def place_ranks(
    dimensions: tuple[int, ...],
    hosts: Sequence[str],
    sockets: Sequence[int],
    order: str = "contiguous",
) -> list[PlacedRank]:
    """Return where each rank is, by rank.

    Args:
        dimensions: ranks of a host, hosts of a rack, racks, aisles; see `parse_dimensions`.
        hosts: their names, all of a rack together.
        sockets: number of cores of each socket of a host.
        order: how ranks are numbered, "contiguous" or "ddl".

    Raises:
        ConfigError: there are more or fewer hosts than the dimensions say, one is there twice, or a
            host has fewer cores than ranks.
    """
    per_host, *outer = dimensions
    num_hosts = math.prod(outer)
    if len(hosts) != num_hosts:
        product = format_dimensions(tuple(outer)) if outer else "1"
        raise ConfigError(
            f"{'x'.join(map(str, dimensions))} has {per_host} ranks on each of {product} hosts, and"
            f" there are {len(hosts)}: {','.join(hosts)}"
        )
    for host in hosts:
        if not host or any(letter.isspace() for letter in host) or hosts.count(host) > 1:
            raise ConfigError(f"hosts are names that differ, with commas between; got {host!r}")
    slots = divide_cores(per_host, sockets)
    ranks = []
    for index, host in enumerate(hosts):
        for local in range(per_host):
            rank = index * per_host + local if order == "contiguous" else local * num_hosts + index
            ranks.append(PlacedRank(rank, host, slots[local]))
    return sorted(ranks, key=lambda placed: placed.rank)


def divide_cores(num_ranks: int, sockets: Sequence[int]) -> list[tuple[Slot, ...]]:
    """Divide the cores of a host among its ranks, as evenly as can be, each core once.

    Ranks get cores that follow each other, so that one has cores of two sockets only where it must.

    Raises:
        ConfigError: there are fewer cores than ranks.
    """
    cores = [(socket, core) for socket, number in enumerate(sockets) for core in range(number)]
    if len(cores) < num_ranks:
        raise ConfigError(
            f"{num_ranks} ranks on a host need a core each, and it has {len(cores)};"
            " give --cores and --sockets of the hosts, or fewer ranks"
        )
    divided = []
    for rank in range(num_ranks):
        own = cores[rank * len(cores) // num_ranks : (rank + 1) * len(cores) // num_ranks]
        by_socket: dict[int, list[int]] = {}
        for socket, core in own:
            by_socket.setdefault(socket, []).append(core)
        divided.append(tuple(Slot(socket, tuple(numbers)) for socket, numbers in by_socket.items()))
    return divided


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of everything after `kadril rankfile`."""
    parser = argparse.ArgumentParser(
        prog="kadril rankfile",
        usage="kadril rankfile [options] XxYxZxW HOST,HOST,... > FILE",
        description="Write a rank file, for `kadril run -rf`, `kadril mpirun -rf` and Open MPI:"
        " X ranks on each of Y x Z x W hosts, each bound to its share of the cores.",
        allow_abbrev=False,
    )
    parser.add_argument("dimensions", metavar="XxYxZxW", help="ranks of a host, hosts, racks, ...")
    parser.add_argument("hosts", metavar="HOST,...", help="their names, rack by rack")
    parser.add_argument("--cores", type=int, help="cores of a host (default: of this machine)")
    parser.add_argument("--sockets", type=int, help="sockets that they are on, evenly (default: 1)")
    parser.add_argument(
        "--order",
        choices=ORDERS,
        default=ORDERS[0],
        help="contiguous: host by host (default); ddl: round the hosts, as ddlrun did",
    )
    return parser


def sockets_of(num_cores: int | None, num_sockets: int | None) -> list[int]:
    """Return the number of cores of each socket, as asked for or of this machine."""
    if num_cores is None and num_sockets is None:
        return [len(socket) for socket in this_topology().sockets]
    cores = this_topology().num_cores if num_cores is None else num_cores
    sockets = 1 if num_sockets is None else num_sockets
    if sockets < 1 or cores < 1 or cores % sockets:
        raise ConfigError(
            f"--cores {cores} on --sockets {sockets}: {cores} / {sockets} is no whole number of"
            " cores on each socket"
        )
    return [cores // sockets] * sockets


def main(argv: list[str]) -> int:
    """Print a rank file and return the exit code."""
    words = make_parser().parse_args(argv)
    try:
        ranks = place_ranks(
            parse_dimensions(words.dimensions),
            [host.strip() for host in words.hosts.split(",")],
            sockets_of(words.cores, words.sockets),
            words.order,
        )
    except ConfigError as error:
        print(f"kadril rankfile: {error}", file=sys.stderr)
        return 2
    print(format_rank_file(ranks), end="", flush=True)
    return 0
