"""Write the generated tables of docs/promises.md: the fault matrix, and what was measured.

python benchmarks/fault_comparison/page.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "faults")]

from fault_comparison.run import FAULTS, SHARES  # noqa: E402
from fault_matrix import MATRIX  # noqa: E402
from harness.claim import RESULTS  # noqa: E402
from harness.results import Results, Series  # noqa: E402

__all__ = ["PAGE", "page_with_tables"]

PAGE = ROOT / "docs" / "promises.md"
COMMAND = "python benchmarks/fault_comparison/page.py"

WORDS = {
    "right": "right",
    "named": "error that names the rank",
    "error": "error without a rank",
    "died": "killed",
    "wrong": "**wrong result in silence**",
    "hung": "**hangs**",
}


def newest_results() -> Path:
    """Return the newest results file of the comparison."""
    return max(RESULTS.glob("fault_comparison-*.json"), key=lambda path: path.name[-15:])


def milliseconds(seconds: float) -> str:
    """Return a time in as many digits as it deserves."""
    return f"{seconds:.1f} s" if seconds >= 1.0 else f"{seconds * 1e3:.0f} ms"


def cell(series: Series | None, kinds: dict[str, int]) -> str:
    """Return what an engine did: how it ended, p50, max and number of runs."""
    if series is None:
        return "not measured"
    ends = ", ".join(
        WORDS[kind] if len(kinds) == 1 else f"{WORDS[kind]} ({kinds[kind]})"
        for kind in sorted(kinds, key=list(WORDS).index)
    )
    if set(kinds) == {"hung"}:
        return f"{ends}; {len(series.rounds)} runs"
    times = f"{milliseconds(series.p50)} / {milliseconds(series.percentile(1.0))}"
    return f"{ends}; {times}; {len(series.rounds)} runs"


def comparison() -> list[str]:
    """Return the lines of the measured table."""
    path = newest_results()
    results = Results.read(path)
    link = f"[{path.stem}](../benchmarks/results/{path.with_suffix('.md').name})"
    lines = [
        f"Raw figures: {link}, {results.machine['cpu']}, {len(results.machine['cores'])} cores."
        f" Measured in parts; the last one at a load of {results.load['begin'][0]:.1f} to"
        f" {results.load['end'][0]:.1f}.",
        "",
        f"| | fault | bound | {' | '.join(SHARES)} |",
        f"|---|---|---|{'---|' * len(SHARES)}",
    ]
    for text, fault in FAULTS.items():
        cells = []
        for engine in SHARES:
            fact = results.facts.get(f"{text}: {engine}", {"kinds": {}})
            cells.append(cell(results.find(text, engine), fact["kinds"]))
        bound = "0 wrong" if fault.number == "F30" else f"{fault.bound:g} s"
        lines.append(f"| {fault.number} | {text} | {bound} | {' | '.join(cells)} |")
    return lines


def matrix() -> list[str]:
    """Return the lines of the table of all faults."""
    lines = ["| | fault | what holds | tests |", "|---|---|---|---|"]
    for fault in MATRIX:
        files = dict.fromkeys(test.partition("::")[0] for test in fault.tests)
        tests = ", ".join(f"`{file}`" for file in files)
        missing = f"; {fault.missing}" if fault.missing else ""
        lines.append(f"| {fault.number} | {fault.text} | {fault.bound} | {tests}{missing} |")
    return lines


def page_with_tables(page: str) -> str:
    """Return the page with its tables written anew, each between two comments."""
    for name, lines in (("comparison", comparison()), ("matrix", matrix())):
        begin, end = f"<!-- {name}: {COMMAND} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"{PAGE} has no place for the {name}: {begin}")
        text = "\n".join([begin, *lines, end])
        page = pattern.sub(lambda _, text=text: text, page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
