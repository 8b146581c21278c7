"""A results file: what was measured in turns, and everything one must know to believe it.

`kadril.bench.report` is the same for `kadril bench`, whose figures have a collective, a size and a
pinning.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.bars import Bar, Spread
from kadril.bench.figures import percentile
from kadril.bench.report import Report, encode_by_line
from kadril.bench.table import format_seconds
from kadril.errors import ConfigError

__all__ = ["Measured", "Results", "Series", "bar_table", "describe_run", "results_path"]

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Series:
    """One setting at one workload, over all rounds.

    Attributes:
        workload: what was done.
        setting: how.
        rounds: seconds per call on the slowest rank; one list of samples per round.
        note: what a reader must know about it.
    """

    workload: str
    setting: str
    rounds: Sequence[Sequence[float]]
    note: str = ""

    def percentile(self, share: float) -> float:
        """Return a percentile of all samples of all rounds."""
        return percentile((value for one in self.rounds for value in one), share)

    @property
    def p50(self) -> float:
        """Return the median of all samples."""
        return self.percentile(0.5)

    @property
    def spread(self) -> Spread:
        """Return the median, and the 10th and 90th percentile, of all samples."""
        return Spread(self.p50, self.percentile(0.1), self.percentile(0.9))


@dataclasses.dataclass(frozen=True)
class Measured:
    """The outcome of a measurement, to be put into a results file.

    Attributes:
        series: samples.
        facts: what else was found out.
        missing: settings that could not be measured, and why.
    """

    series: Sequence[Series]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def join(cls, parts: Iterable[Measured]) -> Measured:
        """Return several as one."""
        joined = list(parts)
        return cls(
            [series for part in joined for series in part.series],
            {name: fact for part in joined for name, fact in part.facts.items()},
            {name: reason for part in joined for name, reason in part.missing.items()},
        )


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of a run, as they stand in a file.

    Attributes:
        theme: folder of the benchmark, and first word of the file's name.
        title: for people.
        date: when the run began, with time zone.
        command: how to run it again.
        num_ranks: that took part.
        machine: see `kadril.observe.machine.Machine`.
        load: load average at the begin and at the end.
        versions: of Python and of packages.
        missing: settings that are not in here, and why.
        facts: what else was found out.
        series: all that was timed.
    """

    theme: str
    title: str
    date: str
    command: str
    num_ranks: int
    machine: Mapping[str, Any]
    load: Mapping[str, Sequence[float]]
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    facts: Mapping[str, Any]
    series: Sequence[Series]
    format: int = FORMAT

    def find(self, workload: str, *settings: str) -> Series | None:
        """Return the fastest of some settings at a workload, or None if none was measured."""
        found = [s for s in self.series if s.workload == workload and s.setting in settings]
        return min(found, key=lambda series: series.p50, default=None)

    def ratio(self, above: Series | None, below: Series | None) -> Spread | None:
        """Return how many times as long one takes as the other: the median of the rounds' ratios.

        Rounds are the pairs that noise cannot tear apart: what is slow for a second is slow for
        both.
        """
        if above is None or below is None:
            return None
        pairs = zip(above.rounds, below.rounds, strict=False)
        return Spread.of([percentile(one, 0.5) / percentile(other, 0.5) for one, other in pairs])

    def to_json(self) -> str:
        """Return the results as JSON, with one line for each series."""
        return encode_by_line(dataclasses.asdict(self), {"series"})

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file that `write` wrote.

        Raises:
            ConfigError: it has another format.
        """
        fields = json.loads(path.read_text())
        if fields.get("format") != FORMAT or "theme" not in fields:
            raise ConfigError(f"{path} is not a results file in format {FORMAT}")
        return cls(**{**fields, "series": tuple(Series(**one) for one in fields["series"])})

    def write(self, directory: Path, bars: Iterable[Bar], notes: Iterable[str] = ()) -> Path:
        """Write raw figures as JSON, tables and bars as Markdown; return the path of the former."""
        path = self.path_in(directory)
        directory.mkdir(exist_ok=True, parents=True)
        path.write_text(self.to_json())
        path.with_suffix(".md").write_text("\n".join(self.page(bars, notes)) + "\n")
        return path

    def path_in(self, directory: Path) -> Path:
        """Return where the raw figures go."""
        return results_path(directory, self.theme, self.machine, self.date)

    def page(self, bars: Iterable[Bar], notes: Iterable[str] = ()) -> list[str]:
        """Return the lines of the Markdown file."""
        lines = [
            f"# {self.title}",
            "",
            *describe_run(self),
            *(f"- {note}" for note in notes),
            "",
            *bar_table(bars),
        ]
        for workload in dict.fromkeys(series.workload for series in self.series):
            lines += ["", f"## {workload}", "", "| setting | p50 | p10 | p90 | rounds | |"]
            lines.append("|---|---:|---:|---:|---:|---|")
            for series in self.series:
                if series.workload == workload:
                    times = " | ".join(map(format_seconds, series.spread))
                    row = f"{series.setting} | {times} | {len(series.rounds)} | {series.note}"
                    lines.append(f"| {row} |")
        return lines


def results_path(directory: Path, theme: str, machine: Mapping[str, Any], date: str) -> Path:
    """Return where the raw figures of a run go.

    Args:
        directory: of results files.
        theme: folder of the benchmark.
        machine: see `kadril.observe.machine.Machine`.
        date: when the run began, with or without the time.
    """
    cpu = re.sub(r"[^a-z0-9]+", "-", machine["cpu"].lower()).strip("-")
    day = date.partition("T")[0]
    return directory / f"{theme}-{cpu}-{len(machine['cores'])}-cores-{day}.json"


def describe_run(run: Results | Report) -> list[str]:
    """Return the lines of Markdown that tell where and how a run was made."""
    machine, load = run.machine, run.load
    return [
        f"- {run.num_ranks} ranks: `{run.command}`, {run.date}",
        f"- machine: {machine['cpu']}, {len(machine['cores'])} cores,"
        f" {machine['memory'] / 2**30:.1f} GiB, {machine['kernel']}, {machine['libc']}",
        f"- load average: {load['begin'][0]:.2f} at the begin, {load['end'][0]:.2f} at the end",
        f"- versions: {', '.join(f'{name} {text}' for name, text in run.versions.items())}",
        *(f"- without {name}: {reason}" for name, reason in run.missing.items()),
    ]


def bar_table(bars: Iterable[Bar]) -> list[str]:
    """Return the lines of a Markdown section with a row for each bar."""
    rows = [f"| {bar.text} | {bar.measured} | {bar.state} |" for bar in bars]
    return ["## Bars", "", "| bar | measured | |", "|---|---|---|", *rows]
