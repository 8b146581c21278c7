"""The standing pool of ranks: processes that are started once and serve all tests of a session."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import itertools
import os
import pickle
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, TypeVar

from kadril.testing.collective_request import CollectiveRequest
from kadril.testing.failure import RanksFailed, Report
from kadril.testing.messages import Barrier, Close, Open, Run, Target, WorldKey
from kadril.testing.mpi_worker_pool import MpiWorkerPool, Unavailable, find_mpi
from kadril.testing.rendezvous import Rendezvous
from kadril.testing.target import locate
from kadril.testing.worker_pool import LocalWorkerPool, Worker, WorkerPool
from kadril.testing.worlds import world_key

__all__ = [
    "RankPool",
    "Unavailable",
    "close_pool",
    "current_pool",
    "pack",
    "results_of",
    "run_on_ranks",
]

Result = TypeVar("Result")

DEFAULT_TIMEOUT = 60.0

# Each world costs memory and descriptors in its ranks; the one not used for longest is closed
# first.
MAX_WORLDS = 8

OPEN_TIMEOUT = 45.0
BARRIER_TIMEOUT = 15.0


class RankPool:
    """Runs functions on ranks that stand ready.

    Example:
        ```python
        def add(world, number):
            total = torch.tensor([number * (world.rank + 1)])
            world.transport.allreduce(total)
            return total.item()

        def test_add(rank_pool):
            assert rank_pool.run(2, add, 10) == [30, 30]
        ```

    Args:
        inherit_output: let ranks print to where this process prints.
        root: directory in which the environments of the MPI transports are looked for.
        mpi_job_size: ranks of the job that is started for an MPI; a larger world starts another.
    """

    def __init__(
        self, *, inherit_output: bool = False, root: Path | None = None, mpi_job_size: int = 4
    ) -> None:
        self.inherit_output = inherit_output
        self.mpi_job_size = mpi_job_size
        self.root = root or Path.cwd()
        self.worker_pools: dict[str, WorkerPool] = {}
        self.worlds: OrderedDict[WorldKey, tuple[Worker, ...]] = OrderedDict()
        self.labels = itertools.count()
        self.expected: dict[str, int] = {}
        self.owner = os.getpid()

    def run(
        self,
        size: int,
        function: Callable[..., Result],
        *arguments: object,
        transport: str = "shm",
        timeout: float = DEFAULT_TIMEOUT,
        **options: object,
    ) -> list[Result]:
        """Call `function(world, *arguments)` on every rank of a world; returns the results by rank.

        Args:
            size: ranks of the world.
            function: defined at the top level of a module, so that the ranks can import it.
            arguments: arguments of the function; they have to be picklable.
            transport: "shm", "c10d", "mpi:openmpi" or "mpi:mpich".
            timeout: seconds after which ranks that have not answered are killed.
            options: options of `kadril.config.Config` for this world, such as `patience=0.5`.

        Raises:
            RanksFailed: it failed on a rank; the message has the traceback of each.
            Unavailable: there is no such MPI on this machine.
        """
        key = world_key(transport, size, options)
        return results_of(self.call(key, locate(function), pack(arguments, {}), timeout))

    def call(self, key: WorldKey, target: Target, payload: bytes, timeout: float) -> list[Report]:
        """Call a function, with what was packed, on every rank; returns what became of each."""
        pool = self.worker_pool(key.transport)
        workers = pool.acquire(key.size)
        try:
            if self.worlds.get(key) != tuple(workers):
                reports = self.open(pool, workers, key)
                if not all(report.fate == "passed" for report in reports):
                    return reports
            self.worlds.move_to_end(key)
            request = Run(key, target, payload, tuple(sys.path))
            reports = CollectiveRequest(pool, workers, key).send([request] * key.size, timeout)
            return self.keep_in_step(pool, workers, key, reports)
        except BaseException:
            # Interrupted: nobody knows what these ranks are in the middle of.
            for worker in workers:
                pool.discard(worker)
            raise

    def open(self, pool: WorkerPool, workers: Sequence[Worker], key: WorldKey) -> list[Report]:
        """Have the workers open a world of their own."""
        while len(self.worlds) >= MAX_WORLDS:
            self.forget(next(iter(self.worlds)))
        rendezvous = Rendezvous(pool.directory, f"world-{next(self.labels)}", key.size)
        hand_over = isinstance(pool, LocalWorkerPool)
        try:
            requests = [
                Open(
                    key,
                    rank,
                    str(rendezvous.path),
                    rendezvous.secret,
                    rendezvous.job,
                    hand_over and rank == 0,
                )
                for rank in range(key.size)
            ]
            opening = CollectiveRequest(pool, workers, key)
            if hand_over:
                opening.after_asking[0] = lambda: send_handle(
                    workers[0].connection, rendezvous.socket.fileno(), workers[0].pid
                )
            reports = opening.send(requests, OPEN_TIMEOUT)
        finally:
            rendezvous.close()
        if all(report.fate == "passed" for report in reports):
            self.worlds[key] = tuple(workers)
        return reports

    def keep_in_step(
        self, pool: WorkerPool, workers: Sequence[Worker], key: WorldKey, reports: list[Report]
    ) -> list[Report]:
        """Keep the world after a test if its ranks are in step, or throw it away.

        A test that leaves its ranks out of step would fail the next one in the same world; it fails
        itself.
        """
        if any(report.is_failure for report in reports):
            self.forget(key)
            return reports
        barriers = CollectiveRequest(pool, workers, key).send(
            [Barrier(key)] * key.size, BARRIER_TIMEOUT
        )
        if all(barrier.fate == "passed" for barrier in barriers):
            return reports
        self.forget(key)
        if any(barrier.fate == "hung" or barrier.kind == "MismatchError" for barrier in barriers):
            return [out_of_step(barrier) for barrier in barriers]
        return reports  # the test has closed or revoked its world, as it may

    def forget(self, key: WorldKey) -> None:
        """Use a world no more; its ranks close it before they answer anything else."""
        for worker in self.worlds.pop(key, ()):
            with contextlib.suppress(OSError):  # a dead rank has closed its worlds
                worker.ask(Close(key))

    def worker_pool(self, transport: str) -> WorkerPool:
        """Return the processes for a transport."""
        family = family_of(transport)
        if family not in self.worker_pools:
            if family == "local":
                self.worker_pools[family] = LocalWorkerPool(inherit_output=self.inherit_output)
            else:
                mpi = find_mpi(family.partition(":")[2], self.root)
                self.worker_pools[family] = MpiWorkerPool(
                    mpi, self.mpi_job_size, inherit_output=self.inherit_output
                )
        pool = self.worker_pools[family]
        pool.expect(self.expected.get(family, 1))
        return pool

    def expect(self, transport: str, size: int) -> None:
        """Say how large a world will be needed, so that its ranks are started together."""
        family = family_of(transport)
        self.expected[family] = max(self.expected.get(family, 1), size)

    def close(self) -> None:
        """End all ranks. The pool can be used again; it starts new ones."""
        self.worlds.clear()
        while self.worker_pools:
            _, pool = self.worker_pools.popitem()
            pool.close()


def family_of(transport: str) -> str:
    """Return which processes serve a transport: each MPI has its own."""
    return transport if transport.startswith("mpi:") else "local"


def pack(arguments: Sequence[object], keywords: Mapping[str, object]) -> bytes:
    """Pickle what a function is called with, and the session's warning filters.

    Raises:
        TypeError: an argument cannot be sent to another process, with its name.
    """
    named = {**{str(place): value for place, value in enumerate(arguments)}, **keywords}
    for name, value in named.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            raise TypeError(
                f"argument {name!r} of type {type(value).__name__} cannot be sent to the ranks:"
                f" {error}; give them plain data, or make it inside the function"
            ) from error
    return pickle.dumps((tuple(arguments), dict(keywords), list(warnings.filters)))


def out_of_step(barrier: Report) -> Report:
    """Return the report of a rank that failed in the barrier after a test."""
    summary = "the test left its ranks out of step: some made a collective call that others did not"
    text = f"in a barrier of all ranks after the test:\n{barrier.summary}\n{barrier.text}"
    return dataclasses.replace(barrier, fate="failed", summary=summary, text=text)


def results_of(reports: Sequence[Report]) -> list[Any]:
    """Return the results by rank, if there are any.

    Raises:
        RanksFailed: a rank failed, or some skipped and others did not.
        pytest.skip.Exception, pytest.xfail.Exception: every rank said so.
    """
    fates = {report.fate for report in reports}
    if fates == {"passed"}:
        return [report.value for report in reports]
    if fates in ({"skipped"}, {"xfailed"}):
        import pytest

        reasons = " / ".join(sorted({report.text for report in reports}))
        leave = pytest.skip if fates == {"skipped"} else pytest.xfail
        leave(reasons)
    raise RanksFailed(reports)


_current: RankPool | None = None


def current_pool() -> RankPool:
    """Return the pool of this process, made when first asked for."""
    global _current  # noqa: PLW0603 - one pool per process is the point
    if _current is None:
        _current = RankPool()
        atexit.register(close_pool)
    return _current


def close_pool() -> None:
    """End the ranks of this process's pool, if it has one."""
    # A child made by fork has a copy of it that is not its own.
    if _current is not None and _current.owner == os.getpid():
        _current.close()


def run_on_ranks(
    size: int,
    function: Callable[..., Result],
    *arguments: object,
    transport: str = "shm",
    timeout: float = DEFAULT_TIMEOUT,
    **options: object,
) -> list[Result]:
    """Call `function(world, *arguments)` on standing ranks; returns the results by rank.

    See `RankPool.run`. The ranks are started at the first call and serve until the process ends.

    Example:
        ```python
        def add(world, number):
            total = torch.tensor([number * (world.rank + 1)])
            world.transport.allreduce(total)
            return total.item()

        assert run_on_ranks(2, add, 10) == [30, 30]
        ```
    """
    return current_pool().run(
        size, function, *arguments, transport=transport, timeout=timeout, **options
    )
