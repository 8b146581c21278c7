"""A claim: a program that measures, writes a results file, and compares it with bars.

    benchmarks/<claim>/run.py [--rounds N] [--output DIR] [--only WORKLOAD]

A claim that says which workloads it has can measure one of them. The others are then taken from the
results file of the same day, where there is one: so a long claim may be measured in parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.bars import Bar, print_bars
from harness.program import ProgramError
from harness.results import Measured, Results
from kadril.bench.report import describe_surroundings

__all__ = ["RESULTS", "Claim"]

RESULTS = Path(__file__).resolve().parents[1] / "results"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim, and how it is measured.

    Attributes:
        theme: name of its folder.
        title: of the results.
        num_ranks: that it measures on.
        num_rounds: unless the command line says otherwise.
        measure: from a number of rounds to what came out; where there are `workloads`, it is also
            given those that are wanted.
        check: yields the bars, and whether they are reached.
        describe: returns more lines for the results.
        draw: makes a picture in a file of that name, and returns its title; or None, where what it
            shows was not measured.
        workloads: that can be measured one by one.
    """

    theme: str
    title: str
    num_ranks: int
    num_rounds: int
    measure: Callable[..., Measured]
    check: Callable[[Results], Iterable[Bar]]
    describe: Callable[[Results], list[str]] | None = None
    draw: Callable[[Results, Path], str | None] | None = None
    workloads: Sequence[str] = ()

    def main(self) -> NoReturn:
        """Run what the command line says, and exit."""
        sys.exit(self.run(sys.argv[1:]))

    def run(self, argv: Sequence[str]) -> int:
        """Measure, write, check; return the exit code, 0 where all bars are reached."""
        words = self._parse(argv)
        only = words.only if self.workloads else None
        surroundings = describe_surroundings()
        try:
            wanted = ([only] if only else self.workloads,) if self.workloads else ()
            measured = self.measure(words.rounds, *wanted)
        except ProgramError as error:
            print(error, file=sys.stderr)
            return 1
        results = self._results(argv, surroundings, measured)
        return self._write(with_others(results, words.output) if only else results, words.output)

    def _parse(self, argv: Sequence[str]) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=f"{self.title}: measure, and check the bars")
        parser.add_argument("--rounds", type=int, default=self.num_rounds)
        parser.add_argument("--output", type=Path, default=RESULTS, help="directory")
        if self.workloads:
            parser.add_argument("--only", choices=self.workloads)
        return parser.parse_args(argv)

    def _results(
        self, argv: Sequence[str], surroundings: dict[str, Any], measured: Measured
    ) -> Results:
        return Results(
            theme=self.theme,
            title=self.title,
            date=surroundings["date"],
            command=shlex.join([f"benchmarks/{self.theme}/run.py", *argv]),
            num_ranks=self.num_ranks,
            machine=surroundings["machine"],
            load={**surroundings["load"], "end": os.getloadavg()},
            versions=surroundings["versions"],
            missing=measured.missing,
            facts=measured.facts,
            series=measured.series,
        )

    def _write(self, results: Results, directory: Path) -> int:
        bars = list(self.check(results))
        lines = self.describe(results) if self.describe else []
        if self.draw is not None:
            picture = results.path_in(directory).with_suffix(".svg")
            picture.parent.mkdir(exist_ok=True, parents=True)
            if (title := self.draw(results, picture)) is not None:
                lines.append(f"![{title}]({picture.name})")
        path = results.write(directory, bars, lines)
        if lines:
            print("\n".join((*lines, "")))
        are_reached = print_bars(bars)
        print(f"\nwritten to {path} and {path.with_suffix('.md').name}")
        return 0 if are_reached else 1


def with_others(results: Results, directory: Path) -> Results:
    """Return the results with those of other workloads in the file of the same day."""
    path = results.path_in(directory)
    if not path.exists():
        return results
    measured = {series.workload for series in results.series}
    before = Results.read(path)
    others = [series for series in before.series if series.workload not in measured]
    facts = {**before.facts, **results.facts}
    return dataclasses.replace(results, series=[*others, *results.series], facts=facts)
