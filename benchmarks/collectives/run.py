"""Measure the collectives on one host, and write what came out to `benchmarks/results`.

    python benchmarks/collectives/run.py [--rounds N] [--seconds S] [--output DIR] [--quick]

All collectives on 2 ranks, all-reduce on 4 ranks, and what an idle world costs.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import re
import shlex
import sys
from pathlib import Path

from check_bars import check_bars

from kadril.bench.bars import Bar, print_bars
from kadril.bench.idle import measure_idle
from kadril.bench.options import BenchOptions
from kadril.bench.report import Idleness, Report
from kadril.bench.run import run_bench
from kadril.bench.table import make_tables
from kadril.observe.machine import look_at_machine

RESULTS = Path(__file__).parents[1] / "results"
IDLE_SECONDS = 5.0


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    default = BenchOptions()
    parser.add_argument("--rounds", type=int, default=default.num_rounds)
    parser.add_argument("--seconds", type=float, default=default.seconds)
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory")
    parser.add_argument("--quick", action="store_true", help="all-reduce only, on 2 ranks too")
    return parser


def write_results(
    directory: Path, reports: dict[int, Report], idle: Idleness, bars: list[Bar]
) -> Path:
    """Write the raw figures as JSON, tables and bars as Markdown; give the path of the former."""
    machine = look_at_machine()
    cpu = re.sub(r"[^a-z0-9]+", "-", machine.cpu.lower()).strip("-")
    date = datetime.datetime.now().astimezone().date().isoformat()
    path = directory / f"collectives-{cpu}-{len(machine.cores)}-cores-{date}.json"
    directory.mkdir(exist_ok=True)
    texts = ",\n".join(f'"{num_ranks}": {reports[num_ranks].to_json()}' for num_ranks in reports)
    idle_world = json.dumps(dataclasses.asdict(idle))
    path.write_text(f'{{\n"idle_world": {idle_world},\n"reports": {{\n{texts}\n}}\n}}\n')
    path.with_suffix(".md").write_text("\n".join(make_page(reports, bars)) + "\n")
    return path


def make_page(reports: dict[int, Report], bars: list[Bar]) -> list[str]:
    """The lines of the Markdown file."""
    lines = ["# Collectives on one host", ""]
    for num_ranks, report in reports.items():
        machine, load = report.machine, report.load
        lines += [
            f"- {num_ranks} ranks: `{report.command}`, {report.date}",
            f"- machine: {machine['cpu']}, {len(machine['cores'])} cores,"
            f" {machine['memory'] / 2**30:.1f} GiB, {machine['kernel']}, {machine['libc']}",
            f"- load average: {load['begin'][0]:.2f} at the begin, {load['end'][0]:.2f} at the end",
            f"- versions: {', '.join(f'{name} {text}' for name, text in report.versions.items())}",
            *(f"- without {name}: {reason}" for name, reason in report.missing.items()),
            "",
        ]
    lines += ["## Bars", "", "| bar | measured | |", "|---|---|---|"]
    lines += [f"| {bar.text} | {bar.measured} | {bar.state} |" for bar in bars]
    for report in reports.values():
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
    reports = {}
    for options in runs:
        reports[options.num_ranks] = run_bench(options, command=command, tell=print_line)
    bars = list(check_bars(reports, idle))
    path = write_results(words.output, reports, idle, bars)
    are_reached = print_bars(bars)
    print(f"\nwritten to {path} and {path.with_suffix('.md').name}")
    return 0 if are_reached else 1


def print_line(text: str) -> None:
    """Tell what happens."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
