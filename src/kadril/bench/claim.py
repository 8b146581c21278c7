"""A claim: a program that measures, writes a sheet of results, and holds it against bars.

    benchmarks/<claim>/run.py [--rounds N] [--output DIR] [--only WORKLOAD]

A claim that says which workloads it has can measure one of them. The others are then taken from the
sheet of the same day, where there is one: so a long claim may be measured in parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kadril.bench.bars import Bar, print_bars
from kadril.bench.program import ProgramError
from kadril.bench.report import describe_surroundings
from kadril.bench.sheet import Series, Sheet

__all__ = ["Outcome", "run_claim"]


class Outcome:
    """What a measurement gave, to be put on a sheet.

    Attributes:
        series: samples.
        facts: what else is known.
        missing: settings that could not be measured, and why.
    """

    def __init__(
        self,
        series: list[Series],
        facts: dict[str, Any] | None = None,
        missing: dict[str, str] | None = None,
    ) -> None:
        self.series = series
        self.facts = facts or {}
        self.missing = missing or {}


def run_claim(
    argv: Sequence[str],
    *,
    program: Path,
    title: str,
    num_ranks: int,
    num_rounds: int,
    measure: Callable[..., Outcome],
    check: Callable[[Sheet], Iterable[Bar]],
    describe: Callable[[Sheet], list[str]] | None = None,
    draw: Callable[[Sheet, Path], str] | None = None,
    workloads: Sequence[str] = (),
) -> int:
    """Measure, write, check; give an exit code, 0 where all bars are reached.

    Args:
        argv: words of the command line.
        program: its `run.py`; the folder's name is the theme.
        title: of the sheet.
        num_ranks: that it measures on.
        num_rounds: unless the command line says otherwise.
        measure: from a number of rounds to what came out; where there are `workloads`, it is also
            given those that are wanted.
        check: the bars, and whether they are reached.
        describe: more lines for the sheet.
        draw: makes a picture in a file of that name, and gives its title.
        workloads: that can be measured one by one.
    """
    theme = program.parent.name
    parser = argparse.ArgumentParser(description=f"{title}: measure, and hold against the bars")
    parser.add_argument("--rounds", type=int, default=num_rounds)
    parser.add_argument(
        "--output", type=Path, default=program.parents[1] / "results", help="directory"
    )
    if workloads:
        parser.add_argument("--only", choices=workloads)
    words = parser.parse_args(argv)
    only = words.only if workloads else None
    surroundings = describe_surroundings()
    try:
        wanted = ([only] if only else workloads,) if workloads else ()
        outcome = measure(words.rounds, *wanted)
    except ProgramError as error:
        print(error, file=sys.stderr)
        return 1
    sheet = Sheet(
        theme=theme,
        title=title,
        date=surroundings["date"],
        command=shlex.join([f"benchmarks/{theme}/run.py", *argv]),
        num_ranks=num_ranks,
        machine=surroundings["machine"],
        load={**surroundings["load"], "end": os.getloadavg()},
        versions=surroundings["versions"],
        missing=outcome.missing,
        facts=outcome.facts,
        series=outcome.series,
    )
    if only:
        sheet = with_others(sheet, words.output)
    bars = list(check(sheet))
    lines = describe(sheet) if describe else []
    if draw is not None:
        picture = sheet.path_in(words.output).with_suffix(".svg")
        picture.parent.mkdir(exist_ok=True, parents=True)
        lines.append(f"![{draw(sheet, picture)}]({picture.name})")
    path = sheet.write(words.output, bars, lines)
    if lines:
        print("\n".join((*lines, "")))
    are_reached = print_bars(bars)
    print(f"\nwritten to {path} and {path.with_suffix('.md').name}")
    return 0 if are_reached else 1


def with_others(sheet: Sheet, directory: Path) -> Sheet:
    """A sheet, and the workloads that the one of the same day has beyond its own."""
    path = sheet.path_in(directory)
    if not path.exists():
        return sheet
    measured = {series.workload for series in sheet.series}
    before = Sheet.from_json(path.read_text())
    others = [series for series in before.series if series.workload not in measured]
    return dataclasses.replace(sheet, series=[*others, *sheet.series])
