"""The report on a terminal: with rich where it is installed, as plain text otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from kadril.bench.figures import OWN_ENGINES, Ratio, Result
from kadril.bench.options import format_size
from kadril.bench.peers import TITLES
from kadril.bench.report import Report

__all__ = ["Table", "format_seconds", "make_tables", "print_tables"]

# Below, what is measured is the cost of a call, and a copy of some bytes says nothing about it.
COPY_FROM = 64 << 10

RICH_MARGIN = 2  # what rich adds to a column


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self) -> list[str]:
        """Return it as plain text; every column is aligned to the right."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        rule = tuple("-" * width for width in widths)
        return [
            self.title,
            *("  ".join(map(str.rjust, row, widths)) for row in (self.header, rule, *self.rows)),
        ]


def make_tables(report: Report) -> Iterator[Table]:
    """Times and ratios of each collective."""
    for collective in dict.fromkeys(result.collective for result in report.results):
        results = [result for result in report.results if result.collective == collective]
        ratios = [ratio for ratio in report.ratios if ratio.collective == collective]
        where = f"{collective}, {report.num_ranks} ranks, float32"
        yield time_table(f"{where}: time of a call, p50 (p99)", results)
        if ratios:
            title = "GB/s, and times as fast as each peer at its better setting (p10-p90 of rounds)"
            yield ratio_table(f"{where}: {title}", results, ratios)


def time_table(title: str, results: Sequence[Result]) -> Table:
    """Rows are sizes and settings, columns are engines."""
    engines = [engine for engine in TITLES if any(r.engine == engine for r in results)]
    by_key = {(r.num_bytes, r.setting, r.engine): r for r in results}
    rows = [
        (*show_place(*place), *(format_result(by_key.get((*place, name))) for name in engines))
        for place in sorted({(r.num_bytes, r.setting) for r in results})
    ]
    return Table(title, ("size", "", *(TITLES[engine] for engine in engines)), tuple(rows))


def ratio_table(title: str, results: Sequence[Result], ratios: Sequence[Ratio]) -> Table:
    """Rows are sizes, settings and kadril's own engines; columns are bandwidths and ratios."""
    peers = [engine for engine in TITLES if any(ratio.peer == engine for ratio in ratios)]
    by_key = {(r.num_bytes, r.setting, r.engine, r.peer): r for r in ratios}
    own = [result for result in results if result.engine in OWN_ENGINES]
    own.sort(key=lambda r: (r.num_bytes, r.setting, OWN_ENGINES.index(r.engine)))
    rows = []
    for result in own:
        place = (result.num_bytes, result.setting)
        bandwidths = (result.algbw, result.busbw) if result.num_bytes else ()
        speeds = [three_digits(bandwidth) for bandwidth in bandwidths] or ["-", "-"]
        cells = [format_ratio(by_key.get((*place, result.engine, peer))) for peer in peers]
        rows.append((*show_place(*place), TITLES[result.engine], *speeds, *cells))
    header = ("size", "", "engine", "algbw", "busbw", *(f"vs {TITLES[peer]}" for peer in peers))
    return Table(title, header, tuple(rows))


def show_place(num_bytes: int, setting: str) -> tuple[str, str]:
    """Return the first cells of a row."""
    return (format_size(num_bytes) if num_bytes else "-", setting)


def format_result(result: Result | None) -> str:
    """Median and 99th percentile of a result."""
    return f"{format_seconds(result.p50)} ({format_seconds(result.p99)})" if result else "-"


def format_ratio(ratio: Ratio | None) -> str:
    """Return a ratio with its spread."""
    if ratio is None or (ratio.peer == "copy" and ratio.num_bytes < COPY_FROM):
        return "-"
    value, low, high = map(three_digits, (ratio.value, ratio.p10, ratio.p90))
    return f"{value}x" if value == low == high else f"{value}x ({low}-{high})"


def format_seconds(seconds: float) -> str:
    """Return a time for people, with three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{three_digits(seconds / factor)} {unit}"
    return f"{three_digits(seconds / 1e-9)} ns"


def three_digits(value: float) -> str:
    """Three digits, and not more than two after the point."""
    if value < 0.005:
        return "<0.01"
    num_decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{num_decimals}f}"


def print_tables(report: Report) -> None:
    """Print all tables."""
    tables = list(make_tables(report))
    try:
        import rich.box
        import rich.console
        import rich.table
    except ImportError:
        print_plainly(tables)
        return
    console = rich.console.Console()
    widths = [len(table.lines()[1]) + RICH_MARGIN * len(table.header) for table in tables]
    if max(widths, default=0) > console.width:
        # rich would fold the cells; a line that is too long is easier to read.
        print_plainly(tables)
        return
    for table in tables:
        drawn = rich.table.Table(title=table.title, title_justify="left", box=rich.box.SIMPLE_HEAD)
        for title in table.header:
            drawn.add_column(title, justify="right", no_wrap=True)
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)


def print_plainly(tables: Sequence[Table]) -> None:
    """Print tables as text."""
    for table in tables:
        print("\n".join(table.lines()), end="\n\n")
