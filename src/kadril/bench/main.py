"""The command line of `kadril bench`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from kadril.bench.options import PEERS, BenchOptions, format_size, parse_names, parse_size
from kadril.bench.plot import check_matplotlib, draw
from kadril.bench.report import Report
from kadril.bench.run import run_bench
from kadril.bench.table import print_tables
from kadril.errors import ConfigError, KadrilError

__all__ = ["main", "parse"]

EPILOG = """\
examples:
  kadril bench --quick                                 all-reduce at a few sizes, in seconds
  kadril bench --collectives allreduce,alltoallv --sizes 4,1M,64M --json out.json
  kadril bench -np 4 --peers gloo,openmpi --plot out.png

Each peer is measured pinned (one rank per core) and unpinned; ratios are against the better of
both.
"""

QUICK: dict[str, Any] = {
    "collectives": ("allreduce",),
    "sizes": (4, 1 << 20, 16 << 20),
    "num_rounds": 3,
    "seconds": 0.06,
}

# An idle rank that uses more of a core than this disturbs whoever is being measured.
IDLE_SHARE = 0.02


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of everything after `kadril bench`."""
    default = BenchOptions()
    parser = argparse.ArgumentParser(
        prog="kadril bench",
        description="Measure the collectives beside gloo, MPI and a plain copy, in the same run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "-np", "-n", "--num-proc", dest="num_ranks", type=int, metavar="N", help="ranks (default 2)"
    )
    add("--collectives", type=parse_names, metavar="NAME,...", help="default: all")
    sizes = ",".join(format_size(size).replace(" ", "") for size in default.sizes)
    add("--sizes", type=parse_sizes, metavar="BYTES,...", help=f"default {sizes}")
    add(
        "--peers",
        type=parse_names,
        metavar="NAME,...",
        help=f"of {', '.join(PEERS)}; default: all that are found; '' for none",
    )
    add("--no-pinned", action="store_true", help="do not measure with one rank per core")
    add("--no-unpinned", action="store_true", help="do not measure with ranks free to move")
    add(
        "--touch",
        choices=("auto", "on", "off"),
        help="write arrays anew before each sample, outside of the timing; auto: from 64 KiB on",
    )
    add(
        "--memory",
        choices=("torch", "numpy"),
        help="whose allocator arrays are from, for all engines alike (default torch, if it is"
        " installed); numpy's asks for huge pages",
    )
    add("--rounds", dest="num_rounds", type=int, metavar="N", help=f"default {default.num_rounds}")
    add("--seconds", type=float, metavar="S", help=f"per measurement (default {default.seconds:g})")
    add("--quick", action="store_true", help="all-reduce only, few sizes, few rounds")
    add("--json", type=Path, metavar="FILE", help="write the report there")
    add("--plot", type=Path, metavar="FILE", help="draw a picture (.png, .svg, .pdf)")
    return parser


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes between commas, each once, smallest first."""
    try:
        return tuple(sorted({parse_size(size) for size in parse_names(text)}))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse(argv: Sequence[str]) -> tuple[BenchOptions, argparse.Namespace]:
    """Read the words after `kadril bench`.

    Raises:
        ConfigError: a value makes no sense.
        SystemExit: argparse found the usage wrong (code 2), or printed help (code 0).
    """
    words = make_parser().parse_args(argv)
    chosen = dict(QUICK) if words.quick else {}
    for field in dataclasses.fields(BenchOptions):
        value = getattr(words, field.name, None)
        if value is not None:
            chosen[field.name] = value
    left_out = {"pinned": words.no_pinned, "unpinned": words.no_unpinned}
    chosen["settings"] = tuple(name for name, is_out in left_out.items() if not is_out)
    return BenchOptions(**chosen), words


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A way to tell what happens: on one line of stderr that changes, where that is a terminal.

    What is worth more than a glance, such as a peer that failed, is in the report too.
    """
    is_terminal = sys.stderr.isatty()

    def tell(text: str) -> None:
        if is_terminal:
            shown = text.partition("\n")[0][: shutil.get_terminal_size().columns - 1]
            print(f"\r\033[K{shown}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def clean_end() -> Iterator[None]:
    """Let SIGTERM end the jobs too, as Ctrl-C does."""

    def leave(signum: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + signum)

    old = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def print_report(report: Report) -> None:
    """Print tables, and what one must know to read them."""
    print_tables(report)
    machine = report.machine
    print(
        f"{machine['cpu']}, {len(machine['cores'])} cores, {machine['kernel']};"
        f" load {report.load['begin'][0]:.2f} at the begin, {report.load['end'][0]:.2f} at the end"
    )
    for name, text in report.versions.items():
        if name.startswith("engine "):
            print(f"  {name.removeprefix('engine ')}: {text}")
    for name, reason in report.missing.items():
        print(f"  without {name}: {reason}")
    for job, idle in report.idle.items():
        if idle.share > IDLE_SHARE:
            share = f"{idle.share:.0%} of a core each"
            print(f"  idle ranks of {job} used {share}, and so disturbed the others")


def main(argv: list[str]) -> int:
    """Run `kadril bench` with these words and return its exit code."""
    try:
        options, words = parse(argv)
        if words.plot:
            check_matplotlib()
        command = shlex.join(["kadril", "bench", *argv])
        with progress() as tell, clean_end():
            report = run_bench(options, command=command, tell=tell)
    except ConfigError as error:
        print(f"kadril bench: {error}", file=sys.stderr)
        return 2
    except KadrilError as error:
        print(f"kadril bench: {error}", file=sys.stderr)
        return 1
    print_report(report)
    if words.json:
        words.json.write_text(report.to_json())
    if words.plot:
        draw(report, words.plot)
    return 0
