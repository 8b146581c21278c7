"""The ranks of this host: started, watched, signalled, and what they leave behind.

Used by the launcher for ranks beside it, and by the agent on every host of a job on several.
"""

from __future__ import annotations

import dataclasses
import math
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from kadril.launch.local.guardian import Guardian
from kadril.launch.local.leftovers import end_leftovers, find_leftovers
from kadril.launch.local.rank_host import EndedRank
from kadril.launch.local.rank_pipes import RankPipes, Receiver
from kadril.launch.local.rank_process import RankForks, RankProcess
from kadril.launch.local.stall_watch import StallWatch
from kadril.observe.flight_record import RecordError, describe_last_call, read_record

__all__ = ["LocalHost", "RankStart"]

# Helpers of a rank (resource trackers, data loaders) notice its end and leave by themselves.
LINGER = 1.0


@dataclasses.dataclass(frozen=True)
class RankStart:
    """Everything that is needed to start one rank.

    Attributes:
        rank: its number.
        command: the program and its arguments.
        environment: all its variables.
        stdin: see `RankProcess.start`, as for all that follow.
        inherit: descriptors that it gets.
        processors: those that it is bound to; none leaves it free.
        directory: its working directory; None is the launcher's.
    """

    rank: int
    command: Sequence[str]
    environment: Mapping[str, str]
    stdin: int | None = subprocess.DEVNULL
    inherit: Sequence[int] = ()
    processors: frozenset[int] = frozenset()
    directory: str | None = None


class LocalHost:
    """Ranks of this host; a `RankHost`."""

    def __init__(
        self,
        job_id: str,
        guardian: Guardian,
        selector: selectors.BaseSelector,
        receiver: Receiver,
        notice: Callable[[str], None],
    ) -> None:
        self.name = ""
        self.has_ended = False
        self.wake_at = math.inf
        self._job_id = job_id
        self._guardian = guardian
        self._selector = selector
        self._notice = notice
        self._pipes = RankPipes(selector, receiver)
        self._stall_watch = StallWatch(job_id, notice)
        self._ranks: list[RankProcess] = []
        self._exited: list[RankProcess] = []  # not taken yet
        self._records: dict[int, Path] = {}  # flight records, by process
        self._forgotten: dict[int, float] = {}  # when they are reaped, by process
        self._is_finishing = False
        # Times by which processes have to have left at the end, and then their pipes to be read.
        self._linger_until = math.inf
        self._read_until = math.inf
        self._pause = 0.01

    def start(self, start: RankStart, forks: RankForks | None = None) -> int:
        """Start a rank and return its process id.

        Args:
            start: everything about it.
            forks: what forks it, if it is not to be started.

        Raises:
            LaunchError: it cannot be started.
        """
        rank = RankProcess.start(
            start.rank,
            start.command,
            start.environment,
            stdin=start.stdin,
            inherit=start.inherit,
            processors=start.processors,
            directory=start.directory,
            forks=forks,
        )
        self._guardian.watch(rank.pid)
        self._ranks.append(rank)
        self._pipes.add(rank)
        if "KADRIL_RECORD_FILE" in start.environment:
            self._records[rank.pid] = Path(start.environment["KADRIL_RECORD_FILE"])
        self._stall_watch.add(start.rank, rank.pid, start.environment)
        self.wake_at = min([self._stall_watch.tick(time.monotonic()), *self._forgotten.values()])
        self._selector.register(
            rank.pidfd, selectors.EVENT_READ, partial(self._exited.append, rank)
        )
        return rank.pid

    @property
    def is_alive(self) -> bool:
        """Whether a rank lives."""
        return any(rank.alive for rank in self._ranks)

    def take_ended(self) -> list[EndedRank]:
        """Return the ranks that ended since the last call; their stderr has been read."""
        ended = []
        for rank in self._exited:
            self._selector.unregister(rank.pidfd)
            status = rank.note_exit()
            self._pipes.drain_errors(rank.rank)
            last_call = self._last_call_of(rank.pid) if status < 0 else ""
            ended.append(EndedRank(rank.rank, status, rank.stopped_by, last_call=last_call))
        self._exited.clear()
        return ended

    def _last_call_of(self, pid: int) -> str:
        """Return what the flight record of a process ends with; empty where it has none."""
        try:
            return describe_last_call(read_record(self._records[pid]))
        except (KeyError, OSError, RecordError):
            return ""

    def signal(self, signum: int) -> None:
        """Pass a signal on to all ranks and their children."""
        for rank in self._ranks:
            rank.signal_group(signum)

    def stop(self, signum: int) -> None:
        """Send a signal that is meant to end all ranks."""
        for rank in self._ranks:
            rank.stop(signum)

    def stop_rank(self, number: int, signum: int) -> None:
        """Send a signal that is meant to end the rank of this number, if it lives."""
        for rank in self._ranks:
            if rank.rank == number and rank.alive:
                rank.stop(signum)

    def go_on_without(self, pid: int) -> None:
        """Forget a rank that has ended, since the job goes on; soon, end what it left behind.

        Its flight record outlives it, and would be taken for that of the next process at its place.
        """
        self._stall_watch.remove(pid)
        record = self._records.pop(pid, None)
        if record is not None:
            record.unlink(missing_ok=True)
            record.with_suffix(".stacks").unlink(missing_ok=True)
        self._forgotten[pid] = time.monotonic() + LINGER
        self.wake_at = min(self.wake_at, self._forgotten[pid])

    def finish(self, *, at_once: bool) -> None:
        """All ranks are dead; what they have started may not be."""
        now = time.monotonic()
        self._is_finishing = True
        self._linger_until = now if at_once else min(self._linger_until, now + LINGER)
        self.wake_at = now

    def tick(self) -> None:
        """Watch for ranks that do not move; in the end, for what they left behind.

        That is processes, until there are none; then pipes, which are read to their end.
        """
        now = time.monotonic()
        if self.has_ended or now < self.wake_at:
            return
        if not self._is_finishing:
            self._reap_forgotten(now)
            self.wake_at = min([self._stall_watch.tick(now), *self._forgotten.values()])
            return
        if self._read_until == math.inf:
            sessions = [rank.pid for rank in self._ranks]
            if find_leftovers(self._job_id, sessions):
                if now < self._linger_until:
                    self._pause = min(2 * self._pause, 0.1)
                    self.wake_at = min(self._linger_until, now + self._pause)
                    return
                self._end_leftovers(self._job_id, sessions)
            # Nobody holds the other ends of the pipes, except a process that hides.
            self._read_until = time.monotonic() + LINGER / 2
        if self._pipes.all_read or now >= self._read_until:
            self._pipes.finish()
            self.has_ended = True
            self.wake_at = math.inf
        else:
            self.wake_at = min(self._read_until, now + 0.01)

    def _reap_forgotten(self, now: float) -> None:
        """Give back the numbers of ranks that the job goes on without, once they are free."""
        due = [rank for rank in self._ranks if self._forgotten.get(rank.pid, math.inf) <= now]
        if not due:
            return
        # By their sessions alone: the other processes of the job are to live.
        try:
            self._end_leftovers("", [rank.pid for rank in due])
        except OSError as error:
            self._notice(f"cannot look for what ranks have left behind: {error.strerror}")
            self._forgotten.update((rank.pid, now + LINGER) for rank in due)
            return
        for rank in due:
            del self._forgotten[rank.pid]
            self._ranks.remove(rank)
            self._guardian.forget(rank.pid)
            rank.close()

    def _end_leftovers(self, job: str, sessions: list[int]) -> None:
        for leftover in end_leftovers(job, sessions):
            owner = f" by rank {leftover.rank}" if leftover.rank else ""
            self._notice(f"ended process {leftover.pid} left behind{owner}: {leftover.command}")

    def balance(self) -> None:
        """Read output where there is room for it, and nowhere else."""
        self._pipes.balance()

    def abort(self) -> None:
        """End everything now."""
        self.stop(signal.SIGKILL)
        end_leftovers(self._job_id, [rank.pid for rank in self._ranks])

    def close(self) -> None:
        """Reap the ranks, and close their pipes."""
        for rank in self._ranks:
            rank.close()
        self._pipes.close()
