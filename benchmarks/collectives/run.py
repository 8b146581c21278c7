"""Measure the collectives on one host, and write what came out to `benchmarks/results`.

    python benchmarks/collectives/run.py [--rounds N] [--seconds S] [--output DIR] [--quick]

All collectives on 2 ranks, all-reduce on 4 ranks, and what an idle world costs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from check_bars import Found, check_bars
from harness.bars import Bar, print_bars
from harness.claim import RESULTS
from harness.idle import measure_idle
from harness.results import bar_table, describe_run, results_path

from kadril.bench.options import BenchOptions
from kadril.bench.run import run_bench
from kadril.bench.table import make_tables

IDLE_SECONDS = 5.0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    default = BenchOptions()
    parser.add_argument("--rounds", type=int, default=default.num_rounds)
    parser.add_argument("--seconds", type=float, default=default.seconds)
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory")
    parser.add_argument("--quick", action="store_true", help="all-reduce only, on 2 ranks too")
    return parser


def write_results(directory: Path, found: Found, bars: list[Bar]) -> Path:
    """Write the raw figures as JSON, tables and bars as Markdown; return the path of the former."""
    first = next(iter(found.reports.values()))
    path = results_path(directory, "collectives", first.machine, first.date)
    directory.mkdir(exist_ok=True)
    texts = ",\n".join(
        f'"{number}": {report.to_json()}' for number, report in found.reports.items()
    )
    idle = json.dumps(found.idle and dataclasses.asdict(found.idle))
    path.write_text(f'{{\n"idle_world": {idle},\n"reports": {{\n{texts}\n}}\n}}\n')
    path.with_suffix(".md").write_text("\n".join(make_page(found, bars)) + "\n")
    return path


def make_page(found: Found, bars: list[Bar]) -> list[str]:
    """Return the lines of the Markdown file."""
    lines = ["# Collectives on one host", ""]
    for report in found.reports.values():
        lines += [*describe_run(report), ""]
    lines += bar_table(bars)
    for report in found.reports.values():
        for table in make_tables(report):
            lines += ["", f"## {table.title}", ""]
            for row in (table.header, ("---:",) * len(table.header), *table.rows):
                lines.append("| " + " | ".join(row) + " |")
    return lines


def main(argv: list[str]) -> int:
    """Measure, write, check."""
    words = make_parser().parse_args(argv)
    command = shlex.join(["benchmarks/collectives/run.py", *argv])
    everything = BenchOptions(num_rounds=words.rounds, seconds=words.seconds)
    allreduce = dataclasses.replace(everything, collectives=("allreduce",))
    runs = (
        allreduce if words.quick else everything,
        dataclasses.replace(allreduce, num_ranks=4),
    )
    idle = measure_idle(2, IDLE_SECONDS)
    reports = {
        options.num_ranks: run_bench(options, command=command, tell=print_line) for options in runs
    }
    found = Found(reports, idle)
    bars = list(check_bars(found))
    path = write_results(words.output, found, bars)
    are_reached = print_bars(bars)
    print(f"\nwritten to {path} and {path.with_suffix('.md').name}")
    return 0 if are_reached else 1


def print_line(text: str) -> None:
    """Tell what happens."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
