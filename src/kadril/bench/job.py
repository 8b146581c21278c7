"""A job: the rank processes of one engine or more, as the driver sees them.

The job is started once. Between tasks its ranks sleep in a read from their links, so that a peer
that would spin inside its own wait takes no core from the one that is measured.
"""

from __future__ import annotations

import select
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import IO, Any

from kadril.bench.link import Link, LinkLost, is_own, listen, make_address
from kadril.bench.peers import JOB_ENGINES, TITLES, Start
from kadril.bench.task import Answer, Task
from kadril.errors import KadrilError

__all__ = ["Job", "JobError", "TaskError"]

START_TIMEOUT = 120.0
TASK_TIMEOUT = 180.0
END_TIMEOUT = 10.0
LINES_SHOWN = 12


class JobError(KadrilError):
    """A job could not be started, or has failed; it is of no use any more."""


class TaskError(KadrilError):
    """No rank can do a task; the job continues."""


class Job:
    """The ranks of one launcher, as the driver sees them.

    Attributes:
        name: of the job; see `peers.py`.
        versions: what its engines call themselves.
        idle_cpu: processor seconds that its ranks used, all together, when they had nothing to do.
        idle_wall: how many seconds they had nothing to do, summed over all ranks.
    """

    def __init__(self, name: str, start: Start, num_ranks: int) -> None:
        self.name = name
        self.num_ranks = num_ranks
        self.versions: dict[str, str] = {}
        self.idle_cpu = 0.0
        self.idle_wall = 0.0
        self._links: list[Link] = []
        self._is_usable = True
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        address = make_address()
        self._listener: socket.socket = listen(address)
        self._process = subprocess.Popen(
            [*start.command, "-m", "kadril.bench.rank", address, name],
            env=dict(start.environment),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the driver, who ends the job
        )

    @property
    def engines(self) -> tuple[str, ...]:
        """Return the names of its engines."""
        return JOB_ENGINES[self.name]

    def await_ranks(self) -> None:
        """Wait until all ranks are there and ready.

        Raises:
            JobError: they did not come, or one said why it cannot work.
        """
        deadline = time.monotonic() + START_TIMEOUT
        try:
            links = [self._accept(deadline) for _ in range(self.num_ranks)]
            ranked = {}
            for link in links:
                hello = self._listen_to(link, deadline)
                if "error" in hello:
                    raise self._failure(hello["error"])
                ranked[hello["rank"]] = link
                self.versions = hello["versions"]
            if len(ranked) != self.num_ranks:
                raise self._failure(f"its ranks call themselves {sorted(ranked)}")
        except LinkLost as error:
            raise self._failure(str(error)) from None
        finally:
            self._listener.close()

    def _accept(self, deadline: float) -> Link:
        while True:
            ready, _, _ = select.select([self._listener], [], [], 0.1)
            if ready:
                sock = self._listener.accept()[0]
                if is_own(sock):
                    self._links.append(Link(sock))
                    return self._links[-1]
                sock.close()
            if self._process.poll() is not None:
                raise self._failure(
                    f"it ended with code {self._process.returncode} before it was ready"
                )
            if time.monotonic() > deadline:
                raise self._failure(f"its ranks did not come within {START_TIMEOUT:g} s")

    def do(self, task: Task) -> list[float]:
        """Do a task and return its samples: seconds per call, each the longest of all ranks.

        Raises:
            JobError: a rank is gone, hangs, or ranks disagree on whether the task can be done.
            TaskError: all ranks say that it cannot be done; the job continues.
        """
        return self._collect({"do": "measure", **task.to_json()})

    def rest(self) -> None:
        """Do nothing, which brings `idle_cpu` up to date; raises what `do` raises."""
        self._collect({"do": "rest"})

    def _collect(self, message: dict[str, Any]) -> list[float]:
        deadline = time.monotonic() + TASK_TIMEOUT
        try:
            for link in self._links:
                link.send(message)
            answers = [Answer.from_json(self._listen_to(link, deadline)) for link in self._links]
        except LinkLost as error:
            raise self._failure(f"{error}, in {message}") from None
        self.idle_cpu += sum(answer.idle_cpu for answer in answers)
        self.idle_wall += sum(answer.idle_wall for answer in answers)
        errors = [answer.error for answer in answers if answer.error]
        if errors:
            if len(errors) < self.num_ranks:
                raise self._failure(f"{errors[0]}, on some ranks only, in {message}")
            raise TaskError(errors[0])
        samples = zip(*(answer.seconds for answer in answers), strict=True)
        return [max(sample) for sample in samples]

    def _listen_to(self, link: Link, deadline: float) -> dict[str, Any]:
        return link.receive(max(deadline - time.monotonic(), 0.001))

    def _failure(self, reason: str) -> JobError:
        """Return the error that ends this job, with the last lines of its output."""
        self._is_usable = False
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()[-LINES_SHOWN:]
        shown = "".join(f"\n    {line}" for line in lines)
        return JobError(f"the ranks of {TITLES[self.name]} failed: {reason}{shown}")

    def close(self) -> None:
        """End all processes."""
        self._listener.close()
        if self._is_usable:
            for link in self._links:
                with suppress(LinkLost):
                    link.send({"do": "quit"})
        if not self._is_usable or not self._ends_within(END_TIMEOUT):
            # A rank whose link is closed ends, whatever it is doing, and its launcher after it.
            for link in self._links:
                link.close()
            self._process.terminate()
            if not self._ends_within(END_TIMEOUT):
                self._process.kill()
                self._process.wait()
        for link in self._links:
            link.close()
        self._output.close()

    def _ends_within(self, timeout: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return self._process.returncode is not None
