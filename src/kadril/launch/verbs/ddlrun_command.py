"""`kadril ddlrun`: IBM's ddlrun, as far as it makes sense here.

    kadril ddlrun -H host1,host2,host3 -accelerators 4 -mode n python ddl_mnist.py

starts 4 ranks on each host, numbered round the hosts as ddlrun did, and tells them by DDL_OPTIONS
what `kadril.ddl.init` would be told: `-mode n:4x3x1x1`. Each option is taken with one dash or two.

| option | here |
|---|---|
| -m, -mode ALG[:DIMS] | algorithm of DDL_OPTIONS, p if not given; dimensions: of the hosts |
| -ddlarg, -ddloption TEXT | added to DDL_OPTIONS |
| -no_ddloptions | DDL_OPTIONS is left alone |
| -H HOST,... | the hosts; this one if not given |
| -accelerators N | ranks of each host; the GPUs of this host, or its cores, if not given |
| -nodes N, -racks N, -aisles N | hosts of a rack, racks of an aisle, aisles; see below |
| -rf, -rankfile FILE | hosts and cores of each rank, instead of all of the above |
| -x NAME[=VALUE] | a variable for the ranks |
| -v | tell what is done |
| -tcp, -t | no effect: TCP is what there is between hosts |
| -mpiarg TEXT | refused: no mpirun is run; `kadril mpirun` takes it |
| -s | refused: hosts are always checked before ranks are started |

The product of -nodes, -racks and -aisles must be the number of hosts, which are given rack by rack.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kadril.errors import ConfigError
from kadril.launch.command import read_exports
from kadril.launch.launcher import run
from kadril.launch.mapping.cpu_topology import this_topology
from kadril.launch.mapping.dimensions import format_dimensions, parse_dimensions
from kadril.launch.mapping.hosts import Host, parse_hosts
from kadril.launch.mapping.placement import Placement
from kadril.launch.mapping.rank_file import PlacedRank, read_rank_file
from kadril.launch.options import LaunchError, RunOptions, SshOptions
from kadril.launch.request.host_options import SSH, split_words
from kadril.launch.verbs.rank_file_command import place_ranks

__all__ = ["main", "to_options"]

USAGE = "kadril ddlrun [-H HOSTS] [-accelerators N] [options] program [arguments ...]"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of everything after `kadril ddlrun`."""
    parser = argparse.ArgumentParser(
        prog="kadril ddlrun",
        usage=USAGE,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def add(*names: str, **settings: object) -> None:
        both = [dashes + name for name in names for dashes in ("-", "--")]
        parser.add_argument(*both, **{"help": argparse.SUPPRESS, **settings})  # type: ignore[arg-type]

    add("m", "mode", dest="mode", default="p")
    add("ddlarg", "ddloption", dest="ddl_arguments", action="append", default=[])
    add("no_ddloptions", dest="no_options", action="store_true")
    add("H", "hosts", dest="hosts")
    add("accelerators", dest="per_host", type=int)
    for name in ("nodes", "racks", "aisles"):
        add(name, type=int)
    add("rf", "rankfile", dest="rank_file")
    add("x", dest="exports", action="append", default=[])
    add("v", "verbose", dest="verbose", action="store_true")
    add("tcp", "t", dest="tcp", action="store_true")
    add("mpiarg", dest="mpiarg")
    add("s", dest="skip", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def to_options(words: argparse.Namespace) -> RunOptions:
    """Return what is to be run.

    Raises:
        ConfigError: an option is refused, or the numbers contradict each other.
    """
    if words.mpiarg is not None:
        raise ConfigError(
            "-mpiarg cannot be used here: no mpirun is run. Use `kadril mpirun --mpiarg`, with a"
            " rank file from `kadril rankfile`"
        )
    if words.skip:
        raise ConfigError("-s cannot be used here: hosts are always checked; leave it out")
    if words.rank_file is not None:
        placement = Placement.of(read_rank_file(words.rank_file), words.rank_file)
        dimensions = dimensions_of(placement, words)
    else:
        hosts = parse_hosts(words.hosts or "localhost")
        per_host = ranks_per_host(hosts, words.per_host)
        dimensions = check_dimensions(per_host, len(hosts), words)
        placement = Placement.of(place(dimensions, [host.name for host in hosts]))
    exports = read_exports(words.exports, os.environ)
    if not words.no_options and "DDL_OPTIONS" not in exports:
        exports["DDL_OPTIONS"] = ddl_options(words.mode, dimensions, words.ddl_arguments)
    notices = ["-tcp has no effect: TCP is what there is between hosts"] if words.tcp else []
    return RunOptions(
        command=tuple(words.command[1:] if words.command[:1] == ["--"] else words.command),
        num_ranks=placement.num_ranks,
        environment=exports,
        notices=tuple(notices),
        verbose=words.verbose,
        placement=placement,
        ssh=SshOptions(program=tuple(split_words(SSH, os.environ.get(SSH, "ssh")))),
    )


def ranks_per_host(hosts: Sequence[Host], asked: int | None) -> int:
    """Return how many ranks each host has.

    Raises:
        ConfigError: the hosts have slots, and not that many.
    """
    slots = {host.num_slots for host in hosts}
    if slots == {1}:
        return asked or number_of_accelerators()
    if len(slots) > 1 or (asked is not None and {asked} != slots):
        raise ConfigError(
            f"-H gives {' or '.join(map(str, sorted(slots)))} slots of a host, and all hosts have"
            " the same number of ranks, which -accelerators gives; a rank file (-rf) can say more"
        )
    return slots.pop()


def number_of_accelerators() -> int:
    """Return the number of GPUs of this host, or of its cores where it has none."""
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) or this_topology().num_cores


def check_dimensions(
    per_host: int, num_hosts: int, words: argparse.Namespace
) -> tuple[int, int, int, int]:
    """Return ranks of a host, hosts of a rack, racks of an aisle, aisles.

    Raises:
        ConfigError: their product is not the number of hosts.
    """
    racks, aisles = words.racks or 1, words.aisles or 1
    if min(per_host, racks, aisles, words.nodes or 1) < 1:
        raise ConfigError("-accelerators, -nodes, -racks and -aisles must be 1 or more")
    nodes = words.nodes or num_hosts // (racks * aisles)
    if nodes * racks * aisles != num_hosts:
        shown = format_dimensions((nodes, racks, aisles))
        raise ConfigError(
            f"-nodes x -racks x -aisles is {shown}, and there are {num_hosts} hosts;"
            " give all hosts with -H, rack by rack"
        )
    return per_host, nodes, racks, aisles


def dimensions_of(placement: Placement, words: argparse.Namespace) -> tuple[int, ...]:
    """Return the dimensions of a rank file; only a single one where hosts have other numbers."""
    sizes = {len(host.ranks) for host in placement.hosts}
    if len(sizes) > 1:
        return (placement.num_ranks,)
    return check_dimensions(sizes.pop(), len(placement.hosts), words)


def place(dimensions: tuple[int, ...], hosts: Sequence[str]) -> list[PlacedRank]:
    """Number ranks round the hosts; bind them if this host has a core for each."""
    sockets = [len(socket) for socket in this_topology().sockets]
    if sum(sockets) >= dimensions[0]:
        return place_ranks(dimensions, hosts, sockets, "ddl")
    free = place_ranks(dimensions, hosts, [dimensions[0]], "ddl")
    return [PlacedRank(placed.rank, placed.host, ()) for placed in free]


def ddl_options(mode: str, dimensions: tuple[int, ...], further: Sequence[str]) -> str:
    """Return the value of DDL_OPTIONS.

    Raises:
        ConfigError: the mode has dimensions with another product.
    """
    algorithm, has_dimensions, text = mode.partition(":")
    if has_dimensions:
        asked = parse_dimensions(text)
        if math.prod(asked) != math.prod(dimensions):
            raise ConfigError(
                f"-mode {mode} is for {format_dimensions(asked)} ranks, and there are"
                f" {format_dimensions(dimensions)}"
            )
        dimensions = asked
    return " ".join([f"-mode {algorithm}:{'x'.join(map(str, dimensions))}", *further])


def main(argv: list[str]) -> int:
    """Run `kadril ddlrun` with these words and return its exit code."""
    parser = make_parser()
    words, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        options = to_options(words)
        shown = options.environment.get("DDL_OPTIONS", "")
        hosts = ", ".join(host.name for host in (options.placement or Placement(())).hosts)
        print(
            f"+ {options.num_ranks} ranks on {hosts}" + (f", DDL_OPTIONS='{shown}'" * bool(shown)),
            file=sys.stderr,
            flush=True,
        )
        return run(options)
    except ConfigError as error:
        print(f"kadril ddlrun: {error}", file=sys.stderr)
        return 2
    except LaunchError as error:
        print(f"kadril ddlrun: {error}", file=sys.stderr)
        return error.exit_code
