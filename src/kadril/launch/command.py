"""The command line of `kadril run`."""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import kadril
from kadril.compat import PACKAGES
from kadril.config import Config, variable
from kadril.errors import ConfigError
from kadril.launch.launcher import run
from kadril.launch.mapping.placement import Placement
from kadril.launch.options import LaunchError, RunOptions
from kadril.launch.request import horovod_flags
from kadril.launch.request.config_file import read_config_file
from kadril.launch.request.dry_run import describe_run
from kadril.launch.request.elastic_options import (
    describe_unused,
    first_number,
    is_elastic,
    to_elastic_options,
)
from kadril.launch.request.host_options import (
    add_host_options,
    describe_idle,
    to_placement,
    to_ssh_options,
)

__all__ = ["main", "make_parser", "parse", "to_options"]

USAGE = "kadril run -np N [options] [--] program [arguments ...]"

# What to say of transports that people ask for in words from elsewhere.
FOREIGN = {
    "mpi": f"cannot be used here: {horovod_flags.USE_MPIRUN}",
    "gloo": "is --gloo here",
}

EPILOG = """\
examples:
  kadril run -np 2 train.py --epochs 3
  kadril run -np 2 -m package.train --epochs 3
  kadril run -np 4 --output-dir logs -- python train.py
  kadril run -np 4 -H host1:2,host2:2 train.py           (hosts that ssh reaches)
  kadril run -rf 4x3.rf train.py                         (hosts and cores of a rank file)
  kadril run -np 4 --min-np 2 train.py                   (goes on when ranks fail)
  kadril run --compat horovod -np 4 python train.py      (a script written for Horovod)
  kadril run --compat distdl -np 4 python train.py       (a script written for DistDL)

which Python:
  a .py file, -m, and a bare `python` or `python3` are run by the Python of kadril, whether or not
  its environment is activated; give the path of another one to use that

exit code:
  0 if all ranks end well, otherwise that of the rank that failed first, 128 + signal if a signal
  killed it; 130 or 143 after Ctrl-C or SIGTERM; 127 if there is no such program; 2 for bad usage
"""


def add_option(parser: argparse._ActionsContainer, *names: str, **settings: Any) -> None:
    """Add an option, and quietly accept its long names with underscores, as torchrun does."""
    action = parser.add_argument(*names, **settings)
    twins = [
        name.replace("-", "_").replace("__", "--", 1)
        for name in names
        if name.startswith("--") and "-" in name[2:]
    ]
    if twins:
        # `required` stays with the shown name: an option and its twin are never both asked for.
        hidden = {**settings, "dest": action.dest, "default": argparse.SUPPRESS}
        parser.add_argument(*twins, **{**hidden, "help": argparse.SUPPRESS})


def make_parser(
    kind: type[argparse.ArgumentParser] = argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    """Return the parser of everything after `kadril run`."""
    parser = kind(
        prog="kadril run",
        usage=USAGE,
        description="Start a program on ranks of one host or several, and leave nothing behind.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = partial(add_option, parser)
    add("-np", "-n", "--num-proc", dest="num_ranks", type=int, metavar="N", help="number of ranks")
    add(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="run a module with all words that follow, as `python -m` does",
    )
    add(
        "-x",
        dest="exports",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="variable for the ranks; may be repeated",
    )
    add("--transport", metavar="KIND", help="sets KADRIL_TRANSPORT")
    add("--patience", type=float, metavar="SECONDS", help="sets KADRIL_PATIENCE")
    add(
        "--output-dir",
        metavar="DIR",
        help="also keep DIR/rank.N.out and .err, without prefixes; old ones are overwritten",
    )
    add("--no-prefix", action="store_true", help="print lines without `[rank] ` before them")
    add("--bind", action="store_true", help="bind each rank to one core of its host, round robin")
    add("--stdin", action="store_true", help="give the launcher's stdin to rank 0")
    add_graces(parser)
    add("-v", "--verbose", action="store_true", help="tell what the launcher does")
    add(
        "--compat",
        action="append",
        metavar="NAME,...",
        help=f"let the ranks import kadril under other names: {', '.join(PACKAGES)}",
    )
    add("--version", action="version", version=f"kadril {kadril.__version__}")
    add("--communication", metavar="KIND", help=argparse.SUPPRESS)
    add_host_options(parser, add_option)
    add_horovod_options(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def add_graces(parser: argparse.ArgumentParser) -> None:
    """Add how long ranks have to end."""
    add = partial(add_option, parser)
    add(
        "--grace",
        type=float,
        default=RunOptions.grace,
        metavar="SECONDS",
        help="after Ctrl-C or SIGTERM, wait so long before SIGKILL (default %(default)g)",
    )
    add(
        "--kill-grace",
        type=float,
        default=RunOptions.kill_grace,
        metavar="SECONDS",
        help="after a rank failed, wait so long before SIGKILL to the others (default %(default)g)",
    )


def add_horovod_options(parser: argparse.ArgumentParser) -> None:
    """Add what horovodrun takes besides, in a group of its own."""
    group = parser.add_argument_group(
        "flags of horovodrun",
        "The others of its flags are taken too, and said to have no effect or refused with a"
        " reason: see docs/guides/horovod.md.",
    )
    add = partial(add_option, group)
    add("-cb", "--check-build", action="store_true", help="list what there is, and start nothing")
    add("--config-file", metavar="YAML", help="read flags of this group from a file")
    add(
        "--output-filename",
        metavar="DIR",
        help="also keep DIR/rank.N/stdout and stderr, without prefixes; old ones are overwritten",
    )
    add(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="print lines with the time before them",
    )
    horovod_flags.add_to(group, add_option)
    add_option(
        parser,
        "--no-replace",
        action="store_true",
        help="with --min-np: let the job shrink when a rank fails, rather than replace the rank",
    )
    add_option(
        parser,
        "--spares",
        type=int,
        metavar="N",
        help="with --min-np: keep N more processes, which wait to take the place of failed ranks"
        " (1, or 0 with --no-replace)",
    )
    add_option(
        parser,
        "--no-fork-server",
        action="store_true",
        help="with --min-np: start each process by itself, rather than fork it from one that has"
        " loaded torch beforehand",
    )


def read_exports(exports: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Turn the words after `-x` into variables.

    Raises:
        ConfigError: a name is empty, or a name without a value is not set here either.
    """
    variables = {}
    for word in exports:
        name, given, value = word.partition("=")
        if not name:
            raise ConfigError(f"-x needs NAME or NAME=VALUE, got {word!r}")
        if not given:
            if name not in environment:
                raise ConfigError(
                    f"-x {name}: no such variable here; give it a value: -x {name}=VALUE"
                )
            value = environment[name]
        variables[name] = value
    return variables


def parse(argv: Sequence[str]) -> RunOptions:
    """Read the words after `kadril run`.

    Raises:
        ConfigError: a value makes no sense.
        SystemExit: argparse found the usage wrong (code 2), or printed help (code 0).
    """
    return to_options(parse_words(argv))


def parse_words(argv: Sequence[str]) -> argparse.Namespace:
    """Let argparse read the words, and say what an unknown one may have meant."""
    parser = make_parser()
    words, unknown = parser.parse_known_args(argv)
    if unknown:
        flag = unknown[0].partition("=")[0]
        known = [name for name in parser._option_string_actions if "_" not in name]
        near = difflib.get_close_matches(flag.replace("_", "-"), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return words


def to_options(words: argparse.Namespace) -> RunOptions:
    """Return what the words on the command line, and the file that they name, ask for."""
    if words.num_ranks is not None and words.num_ranks < 1:
        raise ConfigError(f"the number of ranks (-np) must be at least 1, got {words.num_ranks}")
    placement = to_placement(words)
    if words.config_file is not None:
        add_from_file(words)
    elastic = None
    if is_elastic(words):
        num_ranks = first_number(words, placement)
        elastic = to_elastic_options(words, num_ranks)
        if placement is not None and not placement.needs_ssh:
            placement = None  # its slots are counted
    elif words.num_ranks is None and placement is None:
        raise ConfigError(f"how many ranks? usage: {USAGE}")
    else:
        num_ranks = words.num_ranks or (0 if placement is None else placement.num_ranks)
    applied = horovod_flags.apply(vars(words))
    for own in ("transport", "patience"):
        if getattr(words, own) is not None and own in applied.options:
            raise ConfigError(f"--{own} and {applied.origins[own]} set the same; give one of them")
    check_transport(words, num_ranks, placement)
    timeout = applied.options.get("connect_timeout")
    return RunOptions(
        command=to_command(words),
        num_ranks=num_ranks,
        output_dir=words.output_dir,
        output_filename=words.output_filename,
        prefix=not words.no_prefix,
        timestamps=words.prefix_output_with_timestamp,
        bind=words.bind,
        stdin=words.stdin,
        grace=words.grace,
        kill_grace=words.kill_grace,
        environment=read_exports(words.exports, os.environ),
        transport=words.transport,
        patience=words.patience,
        config=applied.options,
        compat=words.compat,
        notices=(
            *applied.notices,
            *describe_idle(words, placement),
            *describe_unused(words),
        ),
        verbose=words.verbose,
        placement=placement,
        ssh=to_ssh_options(words, None if timeout is None else float(timeout)),
        elastic=elastic,
    )


def to_command(words: argparse.Namespace) -> tuple[str, ...]:
    """Return the program and its arguments."""
    if words.module is not None:
        if not words.module or words.module[0].startswith("-"):
            raise ConfigError("-m needs the name of a module; try: kadril run -np 2 -m package")
        # argparse ends the words of an option at a `--`, which belongs to the module as well.
        return ("python", "-m", *words.module, *words.command)
    # REMAINDER keeps the `--` that parts our options from the program.
    return tuple(words.command[1:] if words.command[:1] == ["--"] else words.command)


def check_transport(words: argparse.Namespace, num_ranks: int, placement: Placement | None) -> None:
    """Refuse transports that ranks of this launcher cannot have, in the words of the user."""
    if words.communication is not None:
        what = FOREIGN.get(words.communication, "is no flag of `kadril run`; see --transport")
        raise ConfigError(f"--communication {words.communication} {what}")
    if words.transport == "mpi":
        raise ConfigError(f"--transport mpi {FOREIGN['mpi']}")
    if words.transport == "alone" and num_ranks != 1:
        raise ConfigError(
            f"--transport alone is for one rank, and -np says {num_ranks}; leave it out"
        )
    if words.transport == "shm" and placement is not None and len(placement.hosts) > 1:
        raise ConfigError(
            f"--transport shm is memory of one host, and there are {len(placement.hosts)};"
            " leave it out"
        )
    for own in ("transport", "patience"):
        if getattr(words, own) is not None:
            try:
                Config.from_environment({variable(own): str(getattr(words, own))})
            except ConfigError as error:
                raise ConfigError(f"--{own}: {error}") from None


def add_from_file(words: argparse.Namespace) -> None:
    """Add what a configuration file says; a word on the command line wins over it."""
    values = read_config_file(words.config_file)
    controllers = {"gloo", "mpi", "jsrun"}
    if any(getattr(words, name) for name in controllers):
        values = {name: value for name, value in values.items() if name not in controllers}
    for name, value in values.items():
        if getattr(words, name) is None:
            setattr(words, name, value)


def main(argv: list[str]) -> int:
    """Run `kadril run` with these words and return its exit code."""
    words = parse_words(argv)
    if words.check_build:
        # Imported here: it brings the doctor's probes, which no other run needs.
        from kadril.launch.request.build_report import print_build_report

        print_build_report()
        return 0
    try:
        options = to_options(words)
        if words.dry_run:
            print("\n".join(describe_run(options, os.environ)), flush=True)
            return 0
        return without_late_interrupts(run(options))
    except ConfigError as error:
        print(f"kadril run: {error}", file=sys.stderr)
        return 2
    except LaunchError as error:
        print(f"kadril run: {error}", file=sys.stderr)
        return error.exit_code


def without_late_interrupts(code: int) -> int:
    """Return an exit code; after Ctrl-C another one, while Python ends, must not change it."""
    if code == 128 + signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code
