"""A results file: what was measured in turns, and everything one must know to believe it.

`report.py` is the same for `kadril bench`, whose figures have a collective, a size and a pinning.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kadril.bench.bars import Bar, Spread
from kadril.bench.figures import percentile
from kadril.bench.report import rounded
from kadril.bench.table import format_seconds
from kadril.errors import ConfigError

__all__ = ["Series", "Sheet"]

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
        """Of all samples of all rounds."""
        return percentile((value for one in self.rounds for value in one), share)

    @property
    def p50(self) -> float:
        """The median of all samples."""
        return self.percentile(0.5)

    @property
    def spread(self) -> Spread:
        """The median of all samples, and the 10th and 90th percentile of all samples."""
        return Spread(self.p50, self.percentile(0.1), self.percentile(0.9))


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A run.

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
        """The fastest of some settings at a workload, or None if none was measured."""
        found = [s for s in self.series if s.workload == workload and s.setting in settings]
        return min(found, key=lambda series: series.p50, default=None)

    def ratio(self, above: Series | None, below: Series | None) -> Spread | None:
        """How many times as long one takes as the other: the median over ratios of each round.

        Rounds are the pairs that noise cannot tear apart: what is slow for a second is slow for
        both.
        """
        if above is None or below is None:
            return None
        pairs = zip(above.rounds, below.rounds, strict=False)
        return Spread.of([percentile(one, 0.5) / percentile(other, 0.5) for one, other in pairs])

    def to_json(self) -> str:
        """As JSON, with one line for each series."""
        lines = []
        for name, value in rounded(dataclasses.asdict(self)).items():
            if name == "series":
                items = ",\n".join("  " + json.dumps(item) for item in value)
                lines.append(f"{json.dumps(name)}: [\n{items}\n]")
            else:
                lines.append(f"{json.dumps(name)}: {json.dumps(value)}")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Sheet:
        """From what `to_json` gave.

        Raises:
            ConfigError: it has another format.
        """
        fields = json.loads(text)
        if fields.get("format") != FORMAT or "theme" not in fields:
            raise ConfigError(f"this is not a results sheet in format {FORMAT}")
        return cls(**{**fields, "series": tuple(Series(**one) for one in fields["series"])})

    def write(self, directory: Path, bars: Iterable[Bar], notes: Iterable[str] = ()) -> Path:
        """Write raw figures as JSON, tables and bars as Markdown; give the path of the former."""
        path = self.path_in(directory)
        directory.mkdir(exist_ok=True, parents=True)
        path.write_text(self.to_json())
        path.with_suffix(".md").write_text("\n".join(self.page(bars, notes)) + "\n")
        return path

    def path_in(self, directory: Path) -> Path:
        """Where the raw figures go."""
        cpu = re.sub(r"[^a-z0-9]+", "-", self.machine["cpu"].lower()).strip("-")
        date = self.date.partition("T")[0]
        return directory / f"{self.theme}-{cpu}-{len(self.machine['cores'])}-cores-{date}.json"

    def page(self, bars: Iterable[Bar], notes: Iterable[str] = ()) -> list[str]:
        """The lines of the Markdown file."""
        machine, load = self.machine, self.load
        lines = [
            f"# {self.title}",
            "",
            f"- {self.num_ranks} ranks: `{self.command}`, {self.date}",
            f"- machine: {machine['cpu']}, {len(machine['cores'])} cores,"
            f" {machine['memory'] / 2**30:.1f} GiB, {machine['kernel']}, {machine['libc']}",
            f"- load average: {load['begin'][0]:.2f} at the begin, {load['end'][0]:.2f} at the end",
            f"- versions: {', '.join(f'{name} {text}' for name, text in self.versions.items())}",
            *(f"- without {name}: {reason}" for name, reason in self.missing.items()),
            *(f"- {note}" for note in notes),
            *("", "## Bars", "", "| bar | measured | |", "|---|---|---|"),
            *(f"| {bar.text} | {bar.measured} | {bar.state} |" for bar in bars),
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
