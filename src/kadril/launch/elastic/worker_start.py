"""Start of the processes of an elastic job: as programs, or by a fork server once it is ready.

A fork server is started when the job has begun to train, with what its ranks had loaded by then.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence

from kadril import compat
from kadril.launch.elastic.worker import Worker
from kadril.launch.forking.fork_client import ForkClient, can_fork
from kadril.launch.local.job import Job
from kadril.launch.local.local_host import LocalHost, RankStart
from kadril.launch.local.program import with_python
from kadril.launch.options import LaunchError, RunOptions
from kadril.world.membership import CONTROL_FD
from kadril.world.preloading import is_worth_preloading

__all__ = ["WorkerStart"]


class WorkerStart:
    """Starts processes of a job, each in a seat: its processors, its number of threads.

    Attributes:
        fork_client: has them forked; None before the job trains, or where nothing would be gained.
    """

    def __init__(
        self,
        options: RunOptions,
        job: Job,
        host: LocalHost,
        variables: Mapping[str, str],
        threads: Sequence[Mapping[str, str]],
        bound: Sequence[frozenset[int]],
        tell: Callable[[str], None],
    ) -> None:
        """Take what is needed to start a process.

        Args:
            options: of the run.
            job: for which processes are started.
            host: on which they are started.
            variables: of all of them.
            threads: further variables, by seat.
            bound: processors, by seat; none leaves a process free.
            tell: hears what is not a person's business.
        """
        self.fork_client: ForkClient | None = None
        self._options = options
        self._command = with_python(options.command)
        self._job = job
        self._host = host
        self._variables = variables
        self._threads = threads
        self._bound = bound
        self._tell = tell

    def start(self, worker: Worker) -> int:
        """Start the process of a worker, and return its id.

        Raises:
            LaunchError: it cannot be started.
        """
        # A spare process does nothing until somebody else's core is free.
        seat = worker.place % len(self._bound)
        start = RankStart(
            worker.place,
            self._command,
            {**self._variables, **self._threads[seat], **self._provisional_variables(worker)},
            stdin=subprocess.DEVNULL,
            inherit=[worker.theirs.fileno()],
            processors=self._bound[seat],
        )
        client = self.fork_client
        # Libraries read the number of threads when they are loaded.
        fits = self._threads[seat] == self._threads[0]
        if client is not None and client.is_ready and fits:
            try:
                return self._host.start(start, client)
            except LaunchError as error:
                self._tell(str(error))
        return self._host.start(start)

    def prepare_forks(self, modules: Collection[str]) -> None:
        """Start a fork server with modules that a rank has loaded, if that is worth it."""
        can_gain = can_fork(self._command) and is_worth_preloading(modules)
        if self.fork_client is not None or not can_gain:
            return
        try:
            self.fork_client = ForkClient(
                self._command, {**self._variables, **self._threads[0]}, modules
            )
        except LaunchError as error:
            self._tell(str(error))
        else:
            self._tell(f"process {self.fork_client.pid} loads {', '.join(modules)}, to be forked")

    @property
    def is_preparing(self) -> bool:
        """Whether there will be a fork server soon."""
        client = self.fork_client
        return client is not None and not client.is_ready and not client.problem

    def close(self) -> None:
        """End the fork server."""
        if self.fork_client is not None:
            self.fork_client.close()

    def _provisional_variables(self, worker: Worker) -> dict[str, str]:
        """Return who a worker is until its first generation tells it."""
        place = worker.place
        size = max(self._options.num_ranks, place + 1)
        variables = self._job.identity(place, place, size)
        # A socket that is never listened at: generations have places of their own.
        variables |= {
            "KADRIL_SIZE": str(size),
            "KADRIL_RENDEZVOUS": f"unix:{os.fspath(self._job.directory)}/meet",
            CONTROL_FD: str(worker.theirs.fileno()),
        }
        for name in compat.compat_names(self._options.compat):
            variables |= compat.rank_variables(name, place, (tuple(range(size)),))
            if name == "horovod":
                variables["HOROVOD_ELASTIC"] = "1"
        return variables
