"""Reports on a test and its ranks, in words."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from kadril.testing.messages import Verdict

__all__ = ["RanksFailed", "Report", "describe", "name_ranks"]

# Beside what a rank says itself: "died" and "hung" are what others say of it.
Fate: TypeAlias = Verdict | Literal["died", "hung"]


@dataclasses.dataclass(frozen=True)
class Report:
    """Report on one rank of a test.

    Attributes:
        rank: within the world of the test.
        fate: "passed", "failed", "skipped", "xfailed", "died" or "hung".
        value: what the function returned.
        summary: one line about a failure.
        text: the traceback, the reason of a skip, or more about how the process ended.
        kind: class of the exception.
        at: CLOCK_MONOTONIC of the end.
        output: what the rank printed meanwhile.
    """

    rank: int
    fate: Fate
    value: Any = None
    summary: str = ""
    text: str = ""
    kind: str = ""
    at: float = 0.0
    output: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether this rank alone makes the test fail."""
        return self.fate in ("failed", "died", "hung")


class RanksFailed(AssertionError):  # noqa: N818 - reads as what happened
    """A function failed on at least one rank.

    Attributes:
        reports: of all ranks, by rank; those with `is_failure` are the cause.
    """

    def __init__(self, reports: Sequence[Report]) -> None:
        super().__init__(describe(reports))
        self.reports: Mapping[int, Report] = {report.rank: report for report in reports}


def describe(reports: Sequence[Report]) -> str:
    """Show each failure once, the earliest first, with the ranks that share it; then the others."""
    shared: dict[tuple[str, str], list[Report]] = {}
    for report in sorted(reports, key=lambda report: (report.at, report.rank)):
        if report.is_failure:
            shared.setdefault((report.summary, report.text), []).append(report)
    paragraphs = [tell(group) for group in shared.values()]
    for fate in ("passed", "skipped", "xfailed"):
        others = [report for report in reports if report.fate == fate]
        if others:
            reasons = " / ".join(sorted({report.text for report in others if report.text}))
            paragraphs.append(
                f"{name_ranks(report.rank for report in others)}: {fate}"
                + (f" ({reasons})" if reasons else "")
            )
    return "\n\n".join(paragraphs)


def tell(group: Sequence[Report]) -> str:
    """One paragraph: the ranks, then what they have in common."""
    ranks = name_ranks(report.rank for report in group)
    text = textwrap.indent(group[0].text.rstrip(), "    ")
    return f"{ranks}: {group[0].summary}\n{text}".rstrip()


def name_ranks(ranks: Iterable[int]) -> str:
    """Name a set of ranks: "rank 2", "ranks 0, 1, 3"."""
    ordered = sorted(ranks)
    noun = "rank" if len(ordered) == 1 else "ranks"
    return f"{noun} {', '.join(map(str, ordered))}"
