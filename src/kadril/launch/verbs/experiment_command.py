"""The command line of `kadril experiment`: starts ranks that run an experiment's file.

    kadril experiment FILE.yaml [-np N] [options]
    kadril experiment new dataset|layer|model NAME

It reads no YAML itself: the ranks do (`kadril.experiment.program`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kadril.launch import command

__all__ = ["main"]

USAGE = """\
kadril experiment FILE.yaml [-np N] [options]
       kadril experiment new dataset|layer|model NAME [--directory DIR]"""

OPTIONS = """\
options for the ranks:
  --data DIR           folder of the data: repo_path of the datasets
  --with FILE.py       Python file that registers classes of your own; may be repeated
  --grid PxQ           ranks along rows and columns of images, such as 2x2
  --groups N           groups of towers that share each batch
  --epochs N           instead of num_epochs of the file
  --pretrain-epochs N  instead of num_pretrain_epochs of the file
  --sample-pct PCT     instead of sample_pct of the file
  --seed N             instead of rng_seed of the file
  --checkpoint FILE    keep the state after each epoch
  --resume [FILE]      go on from the checkpoint, or from FILE, with any number of ranks
  --plot FILE          draw the costs of all epochs
  --visualize FILE     draw the filters of a GB model
  --results FILE       write costs and rates as JSON
  --threads N          threads of each rank
  --no-progress        draw no progress bar

With one rank, distributed classes are replaced by their plain twins.
"""


class Forward(argparse.Action):
    """An option for the ranks: it is passed on as it is."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Keep an option and its value, if it has one."""
        value = [values] if isinstance(values, str) else []
        namespace.forwarded = [*namespace.forwarded, option_string, *value]


def main(argv: list[str]) -> int:
    """Run `kadril experiment` with these words and return its exit code."""
    if argv[:1] == ["new"]:
        from kadril.launch.verbs.new_recipe import write_recipe

        return write_recipe(argv[1:])
    parser = argparse.ArgumentParser(
        prog="kadril experiment",
        usage=USAGE,
        description="Run an experiment that a YAML file describes, on towers of ranks.",
        epilog=OPTIONS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(forwarded=[])
    parser.add_argument("file", metavar="FILE.yaml")
    parser.add_argument("-np", "-n", "--num-proc", dest="num_ranks", type=int, default=1)
    parser.add_argument("-H", "--hosts", metavar="HOST:N,...", help="hosts that ssh reaches")
    for name, value in re.findall(r"^  (--[a-z-]+)( \[?[A-Z]\S*)?", OPTIONS, flags=re.MULTILINE):
        settings: dict[str, Any] = {"nargs": 0} if not value else {}
        settings = {"nargs": "?"} if value.startswith(" [") else settings
        parser.add_argument(name, action=Forward, help=argparse.SUPPRESS, **settings)
    words = parser.parse_args(argv)
    if not Path(words.file).is_file():
        print(f"kadril experiment: there is no file {words.file}", file=sys.stderr)
        return 2
    hosts = [] if words.hosts is None else ["-H", words.hosts]
    ranks = ["-np", str(words.num_ranks), *hosts, "--no-prefix"]
    return command.main([*ranks, "-m", "kadril.experiment.program", words.file, *words.forwarded])
