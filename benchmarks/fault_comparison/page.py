"""Write the generated tables of docs/promises.md: fault matrix, recovery, peers.

python benchmarks/fault_comparison/page.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "faults")]

from fault_comparison.matrix_times import THEME as MATRIX_THEME  # noqa: E402
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


# What becomes of a job whose rank is killed, by setting of benchmarks/elastic; and the bound.
RECOVERIES = {
    "replaced": ("replaced by a spare process (the default)", "2 s"),
    "replaced, forked": ("replaced by a process that is forked then (`--spares 0`)", "2 s"),
    "replaced, started": (
        "replaced by a process that is started then, and loads what the program loads"
        " (`--spares 0 --no-fork-server`; always where there is no torch)",
        "",
    ),
    "shrunk": ("shrunk (`--no-replace`)", "0.3 s"),
    "torchrun": (
        "torchrun: all processes are started again, with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`;"
        " without it, it does not recover",
        "",
    ),
}


def newest_results(theme: str) -> Path:
    """Return the newest results file of a claim."""
    return max(RESULTS.glob(f"{theme}-*.json"), key=lambda path: Results.read(path).date)


def machine_of(results: Results) -> str:
    """Return what it was measured on."""
    return f"{results.machine['cpu']}, {len(results.machine['cores'])} cores"


def load_of(results: Results) -> str:
    """Return the load averages at the begin and at the end."""
    return f"{results.load['begin'][0]:.1f} to {results.load['end'][0]:.1f}"


def link_to(path: Path) -> str:
    """Return a link to the page of a results file."""
    return f"[{path.stem}](../benchmarks/results/{path.with_suffix('.md').name})"


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
    path = newest_results("fault_comparison")
    results = Results.read(path)
    lines = [
        f"Raw figures: {link_to(path)}, {machine_of(results)}. Measured in parts; the last one at a"
        f" load of {load_of(results)}.",
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


def recovery() -> list[str]:
    """Return the lines of the table of recoveries."""
    path = newest_results("elastic")
    results = Results.read(path)
    lines = [
        f"Raw figures: {link_to(path)}, {machine_of(results)}, at a load of {load_of(results)}.",
        "",
        "| the job is | bound | a program with torch | with numpy only |",
        "|---|---|---|---|",
    ]
    for setting, (text, bound) in RECOVERIES.items():
        cells = [seconds(results.find(workload, setting)) for workload in ("torch", "plain")]
        lines.append(f"| {text} | {bound} | {' | '.join(cells)} |")
    horovod = results.missing["Horovod"].removeprefix("documented: ")
    lines.append(f"| Horovod, as documented: {horovod} | | | |")
    return lines


def seconds(series: Series | None, times_of: str = "kills") -> str:
    """Return p50 and maximum, and of how many."""
    if series is None:
        return ""
    times = f"{milliseconds(series.p50)} / {milliseconds(series.percentile(1.0))}"
    return f"{times}; {sum(map(len, series.rounds))} {times_of}"


def matrix() -> list[str]:
    """Return the lines of the table of all faults."""
    path = newest_results(MATRIX_THEME)
    results = Results.read(path)
    lines = [
        "Measured: from the fault to the error of the last survivor, median and longest of all"
        " tests of a row that let a signal or a fault point strike; a wait that patience ends takes"
        f" the patience of its test. Raw figures: {link_to(path)}, {machine_of(results)}.",
        "",
        "| | fault | what holds | measured | tests |",
        "|---|---|---|---|---|",
    ]
    for fault in MATRIX:
        files = dict.fromkeys(test.partition("::")[0] for test in fault.tests)
        tests = ", ".join(f"`{file}`" for file in files)
        missing = f"; {fault.missing}" if fault.missing else ""
        measured = seconds(results.find(fault.number, "kadril"), "runs")
        row = f"{fault.number} | {fault.text} | {fault.bound} | {measured} | {tests}{missing}"
        lines.append(f"| {row} |")
    return lines


def page_with_tables(page: str) -> str:
    """Return the page with its tables written anew, each between two comments."""
    tables = {"comparison": comparison(), "recovery": recovery(), "matrix": matrix()}
    for name, lines in tables.items():
        begin, end = f"<!-- {name}: {COMMAND} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"{PAGE} has no place for the {name}: {begin}")
        text = "\n".join([begin, *lines, end])
        page = pattern.sub(lambda _, text=text: text, page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
