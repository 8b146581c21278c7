"""Watch over the ranks of this host that tells a person when they do not move.

A rank that waits says so in its flight record, whatever the transport. The launcher reads the
records now and then, and tells once what each rank does; a test runner or a notebook may capture
what ranks write, but not this. It knows the ranks that it has started; those that an mpirun has
started it looks for, until all ranks of their world are known.

    quiet --- a rank has waited for `after` seconds in one call ---> told
      ^                                                                |
      `-- every rank that waited then has gone on: twice as long, but -'
                                                   a minute at most

In an elastic job a rank may die in the middle of a call while the others go on. Its launcher says
so by `remove`, since a record outlives the process that wrote it.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kadril.config import Config
from kadril.errors import ConfigError
from kadril.world.membership import CONTROL_FD

if TYPE_CHECKING:
    from kadril.observe.flight_record import FlightRecord
    from kadril.observe.rank_report import RankPlace
    from kadril.observe.running_jobs import FoundRank

__all__ = ["StallWatch"]

LONGEST_WAIT = 6.5  # seconds; with a look and a second for stacks a report comes within ten
LONGEST_PATIENCE = 60.0  # for jobs that have come to wait, and went on, again and again
LOOK_EVERY = 1.5
MAX_LINES = 16


class StallWatch:
    """Looks at the records of ranks, and reports a stall once.

    Attributes:
        after: seconds that a rank may wait in one call before it is told.
    """

    def __init__(
        self,
        job_id: str,
        notice: Callable[[str], None],
        search: Callable[[], Iterable[FoundRank]] | None = None,
    ) -> None:
        """Watch no rank yet.

        Args:
            job_id: name of the job; that of ranks that are found is what they are found with.
            notice: prints a line.
            search: finds ranks that somebody else has started.
        """
        self.after = LONGEST_WAIT
        self._job_id = job_id
        self._notice = notice
        self._search = search
        self._ranks: list[RankPlace] = []
        self._told: dict[int, int] = {}  # processes that waited when it was told: calls begun
        self._look_at = math.inf if search is None else time.monotonic() + LOOK_EVERY

    def add(
        self, rank: int, pid: int, environment: Mapping[str, str], record: Path | None = None
    ) -> None:
        """Watch a rank, unless its variables say not to.

        Args:
            rank: its number.
            pid: its process.
            environment: the variables that it was started with.
            record: its flight record, where no variable names it.
        """
        # Imported here: it has much that nothing else of the launcher needs.
        from kadril.observe.rank_report import RankPlace

        config = Config.from_environment(environment)
        if record is None and "KADRIL_RECORD_FILE" in environment:
            record = Path(environment["KADRIL_RECORD_FILE"])
        if record is None or not config.stall_check:
            return
        self._ranks = [each for each in self._ranks if each.rank != rank]  # one that it replaces
        self._ranks.append(RankPlace(rank, pid, record, CONTROL_FD in environment))
        self.after = min(config.stall_warning, LONGEST_WAIT)
        self._look_at = time.monotonic() + LOOK_EVERY

    def remove(self, pid: int) -> None:
        """Watch a rank no longer: it has ended, and the others go on without it."""
        self._ranks = [each for each in self._ranks if each.pid != pid]
        self._told.pop(pid, None)

    def tick(self, now: float) -> float:
        """Look, if it is time; return when to look again."""
        if now >= self._look_at:
            self._look(now)
            self._look_at = time.monotonic() + min(LOOK_EVERY, self.after)
        return self._look_at

    def _look(self, now: float) -> None:
        records = self._read_records()
        size = max((record.size for record in records.values()), default=1)
        if self._search is not None and len(records) < max(size, 2):
            self._find(self._search())
            records = self._read_records()
        if any(self._still_waits(records, pid) for pid in self._told):
            return
        if self._told:
            self._told = {}
            self.after = min(2 * self.after, LONGEST_PATIENCE)
        waiting = {
            pid: record
            for pid, record in records.items()
            if record.waiting_since is not None and now - record.waiting_since >= self.after
        }
        if waiting:
            self._told = {pid: record.num_begun for pid, record in waiting.items()}
            # In an elastic job a process may have another rank than it was started with.
            self._report(sorted({record.rank for record in waiting.values()}))

    def _read_records(self) -> dict[int, FlightRecord]:
        # Imported here: most jobs end before the first look.
        from kadril.observe.rank_report import try_to_read

        read = {each.pid: try_to_read(each.record) for each in self._ranks}
        return {pid: record for pid, record in read.items() if record is not None}

    def _find(self, ranks: Iterable[FoundRank]) -> None:
        known = {each.pid for each in self._ranks}
        for found in ranks:
            self._job_id = found.job
            # What is wrong with its variables the rank itself has said.
            with warnings.catch_warnings(), suppress(ConfigError):
                warnings.simplefilter("ignore")
                if found.pid not in known:
                    self.add(found.rank, found.pid, found.variables, found.record)

    def _still_waits(self, records: Mapping[int, FlightRecord], pid: int) -> bool:
        record = records.get(pid)
        return (
            record is not None
            and record.num_begun == self._told[pid]
            and record.waiting_since is not None
        )

    def _report(self, waiting: Sequence[int]) -> None:
        from kadril.errors import name_ranks
        from kadril.observe.rank_report import describe_all, examine_ranks

        reports = examine_ranks(self._ranks)
        lines = describe_all(reports)
        self._notice(
            f"the job does not move: {name_ranks(waiting)} waited for"
            f" {self.after:.0f} s or more in one call. What each rank does:"
        )
        for line in lines[:MAX_LINES]:
            self._notice(f"  {line}")
        more = f"{len(lines) - MAX_LINES} lines more, and " if len(lines) > MAX_LINES else ""
        self._notice(
            f"  {more}stacks: kadril dump {self._job_id}; KADRIL_STALL_CHECK=0 ends these reports"
        )
