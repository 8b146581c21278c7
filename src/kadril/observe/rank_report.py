"""Report of the ranks of a job on this host: what each does, with equal lines of many in one.

In an elastic job a process may have another rank than it was started with, or none:

    process 10   rank 1 of 2       by its record
    process 11   rank 0 of 2
    process 12   spare process     without a record, where all ranks are there
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from kadril.errors import name_ranks
from kadril.observe.flight_record import (
    CallRecord,
    FlightRecord,
    RecordError,
    read_record,
    seconds_ago,
)
from kadril.observe.rank_stacks import ask_for_stacks, program_line

__all__ = [
    "RankPlace",
    "RankReport",
    "collapse",
    "describe_all",
    "examine_ranks",
    "name_all",
    "name_process",
]


class RankPlace(NamedTuple):
    """A process that is a rank, or is to be one.

    Attributes:
        rank: that it was started with.
        pid: its process id.
        record: file of its flight record.
        is_elastic: whether its job replaces ranks.
    """

    rank: int
    pid: int
    record: Path
    is_elastic: bool = False


@dataclasses.dataclass(frozen=True)
class RankReport:
    """State of one rank, as far as it is known.

    Attributes:
        rank: its number at present; -1 where it has none.
        pid: its process id.
        state: "stopped", "dead", "waiting", "running", or "starting" before `kadril.init()`.
        record: its flight record, where it has one.
        stacks: of its threads, where it was asked and has answered.
        is_spare: whether it has no rank since all ranks are there.
    """

    rank: int
    pid: int
    state: str
    record: FlightRecord | None = None
    stacks: str = ""
    is_spare: bool = False

    def describe(self) -> tuple[str, float | None]:
        """Return what the rank does, equal for ranks that do the same, and for how many seconds."""
        if self.record is None and self.state == "dead":
            return "dead", None
        if self.is_spare and self.state == "starting":
            return "takes the place of a rank that fails", None
        if self.record is None:
            return f"{self.state}: has not called kadril.init()", None
        line = program_line(self.stacks)
        at = f" at {line}" if line else ""
        if self.record.waits:
            since, text = min(self.record.waits)
            return f"{self.state}: in {text}", seconds_ago(since)
        if self.record.under_way:
            call = self.record.under_way[0]
            return f"{self.state}: in {of_group(call)}{at}", seconds_ago(call.begin)
        last = self.record.calls[-1] if self.record.calls else None
        if last is None or last.end is None:
            return f"{self.state}: in no collective, and none before{at}", None
        return f"{self.state}: in no collective since {of_group(last)}{at}", seconds_ago(last.end)


def of_group(call: CallRecord) -> str:
    """Return a call with its place among those of its group."""
    return f"{call.text}, {call.place}"


def examine_ranks(places: Iterable[RankPlace], *, with_stacks: bool = True) -> list[RankReport]:
    """Look at ranks of this host.

    Args:
        places: where they are.
        with_stacks: whether to ask them for their stacks, so that the program's line is known.
    """
    found = [(place, try_to_read(place.record)) for place in places]
    records = {place.record: record for place, record in found if record is not None}
    stacks = ask_for_stacks(records) if with_stacks else {}
    is_complete = len(records) >= max((record.size for record in records.values()), default=0)
    reports = []
    for place, record in found:
        has_no_rank = record is None and place.is_elastic and bool(records)
        reports.append(
            RankReport(
                place.rank if record is None else record.rank,
                place.pid,
                state_of(place.pid, record),
                record,
                stacks.get(place.record, ""),
            )
        )
        if has_no_rank:
            reports[-1] = dataclasses.replace(reports[-1], rank=-1, is_spare=is_complete)
    return sorted(reports, key=lambda report: (report.rank < 0, report.rank, report.pid))


def try_to_read(path: Path) -> FlightRecord | None:
    """Return a record, or None where there is none yet."""
    try:
        return read_record(path)
    except (OSError, RecordError):
        return None


def state_of(pid: int, record: FlightRecord | None) -> str:
    """Return the state of a rank in a word."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "dead"
    letter = status.rpartition(")")[2].split()[0]
    if letter in "ZX":
        return "dead"
    if letter in "Tt":
        return "stopped"
    if record is None:
        return "starting"
    return "running" if record.waiting_since is None else "waiting"


def collapse(lines: Iterable[tuple[int, tuple[str, float | None]]]) -> list[str]:
    """Return a line for all ranks that do the same, in the order of their first ranks.

    Args:
        lines: rank, and what `RankReport.describe` says of it.
    """
    groups: dict[str, list[tuple[int, float | None]]] = {}
    for rank, (text, seconds) in lines:
        groups.setdefault(text, []).append((rank, seconds))
    collapsed = []
    for text, members in groups.items():
        longest = max((seconds for _, seconds in members if seconds is not None), default=None)
        duration = "" if longest is None else f", for {longest:.0f} s"
        collapsed.append(f"{name_ranks([rank for rank, _ in members])} {text}{duration}")
    return collapsed


def describe_all(reports: Sequence[RankReport]) -> list[str]:
    """Return a line for all ranks that do the same, and then those of processes without a rank."""
    lines = collapse([(each.rank, each.describe()) for each in reports if each.rank >= 0])
    return lines + [
        f"{name_process(each)} {each.describe()[0]}" for each in reports if each.rank < 0
    ]


def name_process(report: RankReport) -> str:
    """Return what to call the process of a report."""
    if report.rank >= 0:
        return f"rank {report.rank}"
    return "spare process" if report.is_spare else "new process"


def name_all(reports: Sequence[RankReport], size: int) -> str:
    """Return how many ranks and other processes there are: "2 of 2 ranks here, 1 spare process".

    Args:
        reports: of all of them.
        size: number of ranks that the job began with.
    """
    size = max((each.record.size for each in reports if each.record is not None), default=size)
    others = Counter(name_process(each) for each in reports if each.rank < 0)
    more = "".join(f", {n} {name}{'es' * (n > 1)}" for name, n in others.items())
    return f"{sum(each.rank >= 0 for each in reports)} of {size} ranks here{more}"
