"""The `kadril` command: one verb, and everything after it belongs to that verb.

The module of a verb is imported only when the verb is chosen, so `kadril run` pays for nothing that
`kadril bench` needs.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import cast

import kadril

__all__ = ["main"]

# verb: (module with `main(argv: list[str]) -> int`, what it does)
VERBS = {
    "run": ("kadril.launch.command", "start a program on many ranks of one or several hosts"),
    "rankfile": (
        "kadril.launch.verbs.rank_file_command",
        "write a rank file: host and cores of each rank",
    ),
    "mpirun": ("kadril.launch.verbs.mpirun_command", "run mpirun with a rank file, of any MPI"),
    "ddlrun": (
        "kadril.launch.verbs.ddlrun_command",
        "start ranks with the options of IBM's ddlrun",
    ),
    "experiment": (
        "kadril.launch.verbs.experiment_command",
        "run an experiment that a YAML file describes, on towers of ranks",
    ),
    "doctor": ("kadril.observe.doctor", "say what was found on this machine, and test it"),
    "ps": ("kadril.observe.ps_command", "list running jobs of this user, and what each rank does"),
    "dump": (
        "kadril.observe.dump_command",
        "show the last collectives and Python stacks of all ranks of a running job",
    ),
    "bench": ("kadril.bench.main", "measure the collectives beside gloo, MPI and a plain copy"),
    "forecast": (
        "kadril.observe.forecast",
        "forecast the time of an all-reduce on many hosts, by a model",
    ),
    "compat-path": (
        "kadril.compat.path_command",
        "print the PYTHONPATH of the packages of --compat, for other launchers",
    ),
    "ddl": ("kadril.ddl.command", "show what a checked all-reduce has dumped"),
    "env": (
        "kadril.launch.verbs.option_table",
        "list the options that are read from KADRIL_* variables",
    ),
}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the part before the verb's own arguments."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {purpose}" for verb, (_, purpose) in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="kadril",
        usage="kadril VERB ...",
        description=f"Train one model on many workers.\n\nverbs:\n{verbs}",
        epilog="`kadril VERB --help` tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kadril {kadril.__version__}")
    parser.add_argument("verb", metavar="VERB", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def describe_unknown(verb: str) -> str:
    """Return the message for a verb that does not exist."""
    near = difflib.get_close_matches(verb.lower(), VERBS, n=1)
    if near:
        return f"there is no `kadril {verb}`; did you mean `kadril {near[0]}`?"
    if verb.endswith(".py") or verb in ("python", "python3"):
        return f"there is no `kadril {verb}`; did you mean `kadril run -np 2 {verb}`?"
    return f"there is no `kadril {verb}`; verbs are {', '.join(VERBS)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the words after `kadril`; those of this process where None.
    """
    parser = make_parser()
    chosen = parser.parse_args(argv)
    if chosen.verb not in VERBS:
        parser.error(describe_unknown(chosen.verb))
    module = importlib.import_module(VERBS[chosen.verb][0])
    verb_main = cast("Callable[[list[str]], int]", module.main)
    try:
        return verb_main(chosen.arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has left, as `head` does: nothing to complain about. What is
        # still buffered must go somewhere, or the interpreter's flush at exit fails the same way.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
