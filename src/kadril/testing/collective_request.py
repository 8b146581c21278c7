"""A collective request: the same to every rank of a world, and what became of each in time.

t   what happens
|   every rank is asked
|   replies come in ...
|   a rank fails: the others have GRACE seconds to end by themselves, most fail likewise
|   then the failed rank revokes the world, so that those who wait for it are let go
|   they have AFTERMATH seconds to return
v   a rank that has not answered at the deadline is asked for its stacks, and killed
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from kadril.testing.failure import Report
from kadril.testing.messages import Abandon, Reply, Request, WorldKey
from kadril.testing.worker_pool import Worker, WorkerPool

__all__ = ["CollectiveRequest"]

GRACE = 1.0
AFTERMATH = 10.0


class CollectiveRequest:
    """Asks all ranks of one world for something, and waits for their replies.

    Args:
        pool: that the workers belong to.
        workers: by rank.
        key: the world that is revoked when a rank fails.
    """

    def __init__(self, pool: WorkerPool, workers: Sequence[Worker], key: WorldKey) -> None:
        self.pool = pool
        self.workers = workers
        self.key = key
        self.reports: dict[int, Report] = {}
        self.pending: dict[Connection[Any, Any], tuple[int, int]] = {}
        # What must follow a request on a rank's connection, such as a descriptor.
        self.after_asking: dict[int, Callable[[], None]] = {}
        self.deadline = 0.0
        self.release_at: float | None = None

    def send(self, requests: Sequence[Request], timeout: float) -> list[Report]:
        """Send rank r the r-th request, wait for all, and return what became of each rank."""
        started = time.monotonic()
        self.deadline = started + timeout
        for rank, (worker, request) in enumerate(zip(self.workers, requests, strict=True)):
            self.ask(rank, worker, request)
        while self.pending and time.monotonic() < self.deadline:
            self.listen()
            if self.release_at is not None and time.monotonic() >= self.release_at:
                self.release()
        for rank, _ in self.pending.values():
            self.report_hang(rank, time.monotonic() - started)
        # Only when all was heard: to lose one rank of an MPI job is to lose them all.
        for rank, report in self.reports.items():
            if report.fate in ("died", "hung"):
                self.pool.discard(self.workers[rank])
        return [self.reports[rank] for rank in range(len(self.workers))]

    def ask(self, rank: int, worker: Worker, request: Request) -> None:
        """Send a rank its request, and what must follow it."""
        try:
            number = worker.ask(request)
            if rank in self.after_asking:
                self.after_asking[rank]()
        except OSError:
            self.report_death(rank)
        else:
            self.pending[worker.connection] = (rank, number)

    def listen(self) -> None:
        """Take the replies that are there, or wait until something is due."""
        due = self.deadline if self.release_at is None else min(self.deadline, self.release_at)
        for connection in wait(list(self.pending), max(0.0, due - time.monotonic())):
            assert isinstance(connection, Connection)
            rank, number = self.pending[connection]
            try:
                reply = connection.recv()
            except (EOFError, OSError):
                del self.pending[connection]
                self.report_death(rank)
                continue
            if reply.number == number:  # not the late answer to an earlier request
                del self.pending[connection]
                self.report_reply(rank, reply)

    def report_reply(self, rank: int, reply: Reply) -> None:
        """Note what a rank said."""
        self.reports[rank] = Report(
            rank,
            reply.verdict,
            value=pickle.loads(reply.value) if reply.value else None,
            summary=reply.summary,
            text=reply.text,
            kind=reply.kind,
            at=reply.at,
            output=self.workers[rank].take_output(),
        )
        if reply.verdict != "passed":
            self.start_grace()

    def report_death(self, rank: int) -> None:
        """Note that a rank's process ended."""
        worker = self.workers[rank]
        summary = f"the process {worker.ending()}"
        self.report_loss(rank, "died", summary, worker.last_output())
        self.start_grace()

    def report_hang(self, rank: int, elapsed: float) -> None:
        """Note that a rank did not answer, with what it was doing."""
        summary = f"no answer within {elapsed:.1f} s, so its process was killed"
        self.report_loss(rank, "hung", summary, f"it was here:\n{self.workers[rank].stacks()}")

    def report_loss(
        self, rank: int, fate: Literal["died", "hung"], summary: str, text: str
    ) -> None:
        """Note what happened to a rank that cannot say so itself."""
        worker, at = self.workers[rank], time.monotonic()
        self.reports[rank] = Report(
            rank, fate, summary=summary, text=text, at=at, output=worker.take_output()
        )

    def start_grace(self) -> None:
        """Limit, at the first failure, the time of ranks that may be waiting for the failed one."""
        if self.release_at is None:
            self.release_at = time.monotonic() + GRACE

    def release(self) -> None:
        """Have the ranks that failed revoke the world."""
        reason = "a rank of this test has failed"
        for rank, report in self.reports.items():
            if report.fate in ("failed", "skipped", "xfailed"):
                with contextlib.suppress(OSError):  # it has died since, which also lets go
                    self.workers[rank].ask(Abandon(self.key, reason))
        self.deadline = min(self.deadline, time.monotonic() + AFTERMATH)
        self.release_at = float("inf")
