"""`kadril mpirun`: mpirun with a rank file, whichever MPI is installed.

    kadril mpirun -n 12 -rf 4x3.rf -x PATH python ddl_mnist.py

    Open MPI 5     mpirun -n 12 --host h1:4,h2:4,h3:4 --map-by rankfile:file=4x3.rf -x PATH ...
    Open MPI 4     mpirun -n 12 --host h1:4,h2:4,h3:4 --rankfile 4x3.rf -x PATH ...
    Hydra          mpirun -genvlist PATH -n 4 -host h1 ... : -n 4 -host h2 ... : ...

Open MPI 5 refuses `-rf`, and takes a rank file only with the hosts beside it. Hydra has no rank
files: hosts and order are passed on, cores are not. The line that is run is printed.

The launcher stays, and tells when ranks of this host do not move, as `kadril run` does.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from itertools import groupby

from kadril.errors import ConfigError
from kadril.launch.local.program import with_python
from kadril.launch.local.watched_program import run_watched
from kadril.launch.mapping.hosts import parse_hosts, read_hostfile
from kadril.launch.mapping.rank_file import PlacedRank, read_rank_file
from kadril.launch.options import LaunchError
from kadril.launch.request.host_options import split_words
from kadril.launch.verbs.mpi_flavour import MpiFlavour, find_mpirun, flavour_of

__all__ = ["main", "translate"]

USAGE = "kadril mpirun [-n N] [-rf FILE] [options] program [arguments ...]"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of everything after `kadril mpirun`."""
    parser = argparse.ArgumentParser(
        prog="kadril mpirun",
        usage=USAGE,
        description="Run mpirun with options that Open MPI 4, 5 and MPICH spell differently.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "-np", "-c", dest="num_ranks", type=int, metavar="N", help="number of ranks")
    add("-rf", "-rankfile", "--rankfile", dest="rank_file", metavar="FILE", help="a rank file")
    add("-H", "-host", "--host", "--hosts", dest="hosts", metavar="NAME:SLOTS,...")
    add("-hostfile", "--hostfile", "-machinefile", "--machinefile", dest="hostfile", metavar="FILE")
    add("-x", dest="exports", action="append", default=[], metavar="NAME[=VALUE]")
    add(
        "-mpiarg",
        "--mpiarg",
        dest="mpi_arguments",
        action="append",
        default=[],
        metavar="TEXT",
        help="further options for mpirun, as it spells them: --mpiarg '--mca pml ob1'",
    )
    add("--ssh-args", metavar="TEXT", help="further arguments of ssh: '-F file'")
    add("--mpirun", metavar="PATH", help="the mpirun to use (default: beside this Python, PATH)")
    add("--dry-run", action="store_true", help="print the line, and run nothing")
    add(
        "--no-stall-check",
        action="store_true",
        help="do not tell when the job does not move; sets KADRIL_STALL_CHECK=0",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def translate(words: argparse.Namespace, mpirun: str, flavour: MpiFlavour) -> list[str]:
    """Return the command line for an MPI.

    Raises:
        ConfigError: there is no program, or the rank file, -n and -H contradict each other.
    """
    command = words.command[1:] if words.command[:1] == ["--"] else words.command
    if not command:
        raise ConfigError(f"no program to run; usage: {USAGE}")
    command = list(with_python(command))
    ranks = None if words.rank_file is None else read_rank_file(words.rank_file)
    num_ranks = words.num_ranks
    if ranks is not None:
        if num_ranks is not None and num_ranks != len(ranks):
            raise ConfigError(
                f"-n {num_ranks}, and rank file {words.rank_file} has {len(ranks)} ranks; give the"
                " same, or leave -n out"
            )
        num_ranks = len(ranks)
    further = [word for text in words.mpi_arguments for word in split_words("--mpiarg", text)]
    if flavour.name == "Hydra":
        return [mpirun, *for_hydra(words, ranks, num_ranks, further, command)]
    return [mpirun, *for_open_mpi(words, ranks, num_ranks, further, flavour), *command]


def for_open_mpi(
    words: argparse.Namespace,
    ranks: Sequence[PlacedRank] | None,
    num_ranks: int | None,
    further: list[str],
    flavour: MpiFlavour,
) -> list[str]:
    """Return the options of Open MPI, without the program."""
    options = [] if num_ranks is None else ["-n", str(num_ranks)]
    if words.hosts is not None:
        options += ["--host", words.hosts]
    elif words.hostfile is not None:
        options += ["--hostfile", words.hostfile]
    elif ranks is not None:
        options += ["--host", hosts_of(ranks)]
    if words.rank_file is not None:
        if flavour.major >= 5:
            options += ["--map-by", f"rankfile:file={words.rank_file}"]
        else:
            options += ["--rankfile", words.rank_file]
    for export in words.exports:
        options += ["-x", export]
    return [*options, *further]


def hosts_of(ranks: Sequence[PlacedRank]) -> str:
    """Return the hosts of a rank file with their numbers of ranks, as `--host` takes them."""
    numbers: dict[str, int] = {}
    for placed in ranks:
        numbers[placed.host] = numbers.get(placed.host, 0) + 1
    return ",".join(f"{host}:{number}" for host, number in numbers.items())


def for_hydra(
    words: argparse.Namespace,
    ranks: Sequence[PlacedRank] | None,
    num_ranks: int | None,
    further: list[str],
    command: list[str],
) -> list[str]:
    """Return the options of Hydra, and the program: once for each run of ranks on one host."""
    options = []
    names = [export for export in words.exports if "=" not in export]
    if names:
        options += ["-genvlist", ",".join(names)]
    for export in words.exports:
        name, given, value = export.partition("=")
        if given:
            options += ["-genv", name, value]
    options += further
    if ranks is None:
        named = None
        if words.hosts is not None:
            named = parse_hosts(words.hosts)
        elif words.hostfile is not None:
            named = read_hostfile(words.hostfile)
        if named is not None:
            options += ["-hosts", ",".join(f"{host.name}:{host.num_slots}" for host in named)]
        return [*options, *([] if num_ranks is None else ["-n", str(num_ranks)]), *command]
    segments = []
    for host, own in groupby(ranks, key=lambda placed: placed.host):
        segments.append(["-n", str(len(list(own))), "-host", host, *command])
    joined = [word for segment in segments for word in (":", *segment)]
    return [*options, *joined[1:]]


def ssh_variables(text: str | None, flavour: MpiFlavour) -> dict[str, str]:
    """Return the variables by which an MPI gives arguments to ssh.

    Raises:
        ConfigError: it cannot.
    """
    if text is None:
        return {}
    if flavour.name == "Hydra":
        raise ConfigError(
            "Hydra gives no arguments to ssh; put them into ~/.ssh/config, or write a program that"
            " calls ssh with them, and give --mpiarg '-launcher-exec PROGRAM'"
        )
    return {"PRTE_MCA_plm_ssh_args" if flavour.major >= 5 else "OMPI_MCA_plm_rsh_args": text}


def main(argv: list[str]) -> int:
    """Run mpirun, and return its exit code, or that of why it is not run."""
    parser = make_parser()
    words, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unknown: {unknown[0]}; pass options of mpirun in --mpiarg '{unknown[0]}'")
    try:
        mpirun = words.mpirun or find_mpirun()
        flavour = flavour_of(mpirun)
        line = translate(words, mpirun, flavour)
        added = ssh_variables(words.ssh_args, flavour)
        if words.no_stall_check:
            added["KADRIL_STALL_CHECK"] = "0"
    except (ConfigError, LaunchError) as error:
        print(f"kadril mpirun: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, LaunchError) else 2
    shown = [*(shlex.quote(f"{name}={value}") for name, value in added.items()), shlex.join(line)]
    if words.dry_run:
        print(" ".join(shown), flush=True)
        return 0
    if flavour.name == "Hydra" and words.rank_file is not None:
        print(
            "kadril mpirun: Hydra has no rank files: hosts and order are those of the file, ranks"
            " are bound to no cores; see its -bind-to",
            file=sys.stderr,
        )
    print("+", " ".join(shown), file=sys.stderr, flush=True)
    try:
        return run_watched(line, {**os.environ, **added})
    except ConfigError as error:
        print(f"kadril mpirun: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"kadril mpirun: cannot start {mpirun}: {error.strerror}", file=sys.stderr)
        return 126
