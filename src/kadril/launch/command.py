"""The command line of `kadril run`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kadril.errors import ConfigError
from kadril.launch.launcher import run
from kadril.launch.options import LaunchError, RunOptions

__all__ = ["main", "parse"]

USAGE = "kadril run -np N [options] [--] program [arguments ...]"

EPILOG = """\
examples:
  kadril run -np 2 train.py --epochs 3        (a .py file is run by the Python of kadril)
  kadril run -np 4 --output-dir logs -- python -m package.train

exit code:
  0 if all ranks end well, otherwise that of the rank that failed first, 128 + signal if a signal
  killed it; 130 or 143 after Ctrl-C or SIGTERM; 127 if there is no such program; 2 for bad usage
"""


def add_option(parser: argparse.ArgumentParser, *names: str, **settings: Any) -> None:
    """Add an option, and quietly accept its long names with underscores, as torchrun does."""
    action = parser.add_argument(*names, **settings)
    twins = [name.replace("-", "_").replace("__", "--", 1) for name in names if "-" in name[2:]]
    if twins:
        # `required` stays with the shown name: an option and its twin are never both asked for.
        hidden = {**settings, "dest": action.dest, "default": argparse.SUPPRESS}
        parser.add_argument(*twins, **{**hidden, "help": argparse.SUPPRESS})


def make_parser() -> argparse.ArgumentParser:
    """The parser of everything after `kadril run`."""
    parser = argparse.ArgumentParser(
        prog="kadril run",
        usage=USAGE,
        description="Start a program on many ranks of this host, and leave nothing behind.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = partial(add_option, parser)
    add("-np", "-n", "--num-proc", dest="num_ranks", type=int, metavar="N", help="number of ranks")
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
    add("--bind", action="store_true", help="bind each rank to one core, round robin")
    add("--stdin", action="store_true", help="give the launcher's stdin to rank 0")
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
    add("-v", "--verbose", action="store_true", help="tell what the launcher does")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


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
    words = make_parser().parse_args(argv)
    if words.num_ranks is None:
        raise ConfigError(f"how many ranks? usage: {USAGE}")
    # REMAINDER keeps the `--` that parts our options from the program.
    command = words.command[1:] if words.command[:1] == ["--"] else words.command
    return RunOptions(
        command=tuple(command),
        num_ranks=words.num_ranks,
        output_dir=words.output_dir,
        prefix=not words.no_prefix,
        bind=words.bind,
        stdin=words.stdin,
        grace=words.grace,
        kill_grace=words.kill_grace,
        environment=read_exports(words.exports, os.environ),
        transport=words.transport,
        patience=words.patience,
        verbose=words.verbose,
    )


def main(argv: list[str]) -> int:
    """Run `kadril run` with these words and give its exit code."""
    try:
        return run(parse(argv))
    except ConfigError as error:
        print(f"kadril run: {error}", file=sys.stderr)
        return 2
    except LaunchError as error:
        print(f"kadril run: {error}", file=sys.stderr)
        return error.exit_code
