"""Report of the ranks of a job on this host: what each does, with equal lines of many in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from kadril.errors import name_ranks
from kadril.observe.flight_record import (
    CallRecord,
    FlightRecord,
    RecordError,
    read_record,
    seconds_ago,
)
from kadril.observe.rank_stacks import ask_for_stacks, program_line

__all__ = ["RankReport", "collapse", "examine_ranks"]


@dataclasses.dataclass(frozen=True)
class RankReport:
    """State of one rank, as far as it is known.

    Attributes:
        rank: number of the rank.
        pid: its process id.
        state: "stopped", "dead", "waiting", "running", or "starting" before `kadril.init()`.
        record: its flight record, where it has one.
        stacks: of its threads, where it was asked and has answered.
    """

    rank: int
    pid: int
    state: str
    record: FlightRecord | None = None
    stacks: str = ""

    def describe(self) -> tuple[str, float | None]:
        """Return what the rank does, equal for ranks that do the same, and for how many seconds."""
        if self.record is None and self.state == "dead":
            return "dead", None
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
    return f"{call.text}, call {call.sequence} of a group of {call.num_members}"


def examine_ranks(
    places: Iterable[tuple[int, int, Path]], *, with_stacks: bool = True
) -> list[RankReport]:
    """Look at ranks of this host.

    Args:
        places: rank, process id and file of the record of each.
        with_stacks: whether to ask them for their stacks, so that the program's line is known.
    """
    found = [(rank, pid, path, try_to_read(path)) for rank, pid, path in places]
    records = {path: record for _, _, path, record in found if record is not None}
    stacks = ask_for_stacks(records) if with_stacks else {}
    return [
        RankReport(
            # In an elastic job a process may have another rank than it was started with.
            rank if record is None else record.rank,
            pid,
            state_of(pid, record),
            record,
            stacks.get(path, ""),
        )
        for rank, pid, path, record in found
    ]


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
