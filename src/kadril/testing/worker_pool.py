"""The processes behind the standing pool of ranks, as the test session sees them."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from kadril.testing.fork_client import ForkedProcess, current_fork_client
from kadril.testing.leaks import keep, release
from kadril.testing.messages import Hello, Quit, Request
from kadril.testing.process import ask_for_stacks, describe_exit, read_tail, state_of
from kadril.testing.rendezvous import make_directory, remove_directory
from kadril.testing.starting import START_TIMEOUT, PoolError, worker_environment
from kadril.testing.worker import SECRET_NAME, SOCKET_NAME, STACK_SIGNAL, output_path, stack_path

__all__ = ["Listener", "LocalWorkerPool", "Worker", "WorkerPool"]

# One that was forked, or started as a program.
Process: TypeAlias = "subprocess.Popen[bytes] | ForkedProcess"

# Most tests need no more ranks, which are started together. Others are started when a test asks for
# them.
MOST_STARTED_EARLY = 4
QUIT_TIMEOUT = 5.0


class Worker:
    """One standing rank, as the session sees it."""

    def __init__(
        self,
        hello: Hello,
        connection: Connection[Any, Any],
        directory: Path,
        process: Process,
        job_output: Path | None = None,
    ) -> None:
        self.index = hello.index
        self.pid = hello.pid
        self.connection = connection
        self.process = process  # its own, or the mpirun that started it
        self.job_output = job_output  # of that mpirun
        self.output_file = output_path(directory, hello.index)
        self.stack_file = stack_path(directory, hello.index)
        self.numbers = itertools.count()
        self.output_read = self.output_size()

    def ask(self, request: Request) -> int:
        """Send a request; its number comes back with the reply."""
        number = next(self.numbers)
        self.connection.send((number, request))
        return number

    def output_size(self) -> int:
        """Return how many bytes it has printed since it was started."""
        return self.output_file.stat().st_size if self.output_file.exists() else 0

    def peek_output(self) -> str:
        """Return what it has printed since it was last taken."""
        return read_tail(self.output_file, self.output_read)

    def take_output(self) -> str:
        """Return what it has printed since the last call."""
        size = self.output_size()
        text = self.peek_output() if size > self.output_read else ""
        self.output_read = size
        return text

    def stacks(self) -> str:
        """Return where its threads are, as it says; a stopped process cannot."""
        state = state_of(self.pid)
        if state in ("stopped", "traced", "dead"):
            return f"(the process is {state})"
        stacks = ask_for_stacks(self.pid, self.stack_file, STACK_SIGNAL)
        return stacks or f"(the process is {state} and did not answer)"

    def last_output(self) -> str:
        """Return what it, and the mpirun that started it, printed last."""
        words = f"the last it printed:\n{self.peek_output()}"
        if self.job_output is not None:
            words += f"\nthe last that mpirun printed:\n{read_tail(self.job_output)}"
        return words

    def ending(self) -> str:
        """Return how it ended, for one whose connection is gone."""
        try:
            end = describe_exit(self.process.wait(QUIT_TIMEOUT))
        except subprocess.TimeoutExpired:
            return "has closed its connection to the session"
        return end if self.job_output is None else f"is gone, and its MPI job {end}"

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self.connection.closed and state_of(self.pid) != "dead"

    def kill(self) -> None:
        """End it at once, in whatever state it is."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


class WorkerPool(Protocol):
    """Processes that can be asked to be ranks."""

    directory: Path

    def expect(self, size: int) -> None:
        """Say how many ranks will be needed, so that they are started together."""
        ...

    def acquire(self, size: int) -> list[Worker]:
        """Return the workers of ranks 0 to size - 1, all of them alive."""
        ...

    def discard(self, worker: Worker) -> None:
        """End a worker that cannot be used any more; `acquire` starts another in its place."""
        ...

    def close(self) -> None:
        """End all workers and leave nothing."""
        ...


class Listener:
    """Socket in a private directory that started processes connect to, with a secret beside it."""

    def __init__(self, directory: Path) -> None:
        self.secret = secrets.token_bytes(32)
        descriptor = os.open(directory / SECRET_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.secret)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(os.fspath(directory / SOCKET_NAME))
        self.socket.listen(16)
        self.waiting: list[Connection[Any, Any]] = []

    def accept(
        self, check: Callable[[], None], deadline: float
    ) -> tuple[Hello, Connection[Any, Any]]:
        """Wait for the next process that is up.

        Args:
            check: called now and then; raises if waiting is in vain.
            deadline: CLOCK_MONOTONIC after which to give up.

        Raises:
            PoolError: the deadline has passed.
        """
        while time.monotonic() < deadline:
            for ready in wait([self.socket, *self.waiting], timeout=0.2):
                if ready is self.socket:
                    self.authenticate()
                elif isinstance(ready, Connection):
                    self.waiting.remove(ready)
                    try:
                        return ready.recv(), ready
                    except EOFError:
                        ready.close()  # it died meanwhile; `check` says how
            check()
        raise PoolError(f"the ranks of the test pool were not up within {START_TIMEOUT:g} s")

    def authenticate(self) -> None:
        """Accept a process that knows the secret; its hello comes when it has imported torch."""
        accepted, _ = self.socket.accept()
        connection: Connection[Any, Any] = Connection(accepted.detach())
        try:
            deliver_challenge(connection, self.secret)
            answer_challenge(connection, self.secret)
        except (EOFError, OSError, AuthenticationError):
            connection.close()
        else:
            self.waiting.append(connection)

    def close(self) -> None:
        """Close the socket, and connections of processes that have not said hello."""
        self.socket.close()
        for connection in self.waiting:
            connection.close()


class LocalWorkerPool:
    """Processes on this host, one per rank, started when first needed.

    Args:
        inherit_output: let ranks print to where the session prints, not to their own files.
    """

    def __init__(self, *, inherit_output: bool = False) -> None:
        self.output = "inherit" if inherit_output else "file"
        self.directory = make_directory("pool")
        self.listener = Listener(self.directory)
        keep(self, fds=[self.listener.socket.fileno()], paths=[self.directory])
        self.expected = 1
        self.starting: dict[int, Process] = {}
        self.workers: dict[int, Worker] = {}

    def expect(self, size: int) -> None:
        """Say how many ranks will be needed, so that they are started together."""
        self.expected = max(self.expected, size)

    def acquire(self, size: int) -> list[Worker]:
        """Return the workers of ranks 0 to size - 1, all of them alive.

        Raises:
            PoolError: a process could not be started.
        """
        for worker in list(self.workers.values()):
            if not worker.alive:
                self.discard(worker)
        self.expect(size)
        for index in range(max(size, min(self.expected, MOST_STARTED_EARLY))):
            if index not in self.workers and index not in self.starting:
                self.starting[index] = self.start(index)
                keep(self, pids=[self.starting[index].pid])
        deadline = time.monotonic() + START_TIMEOUT
        while not self.workers.keys() >= set(range(size)):
            hello, connection = self.listener.accept(self.check, deadline)
            keep(self, fds=[connection.fileno()])
            process = self.starting.pop(hello.index)
            self.workers[hello.index] = Worker(hello, connection, self.directory, process)
        return [self.workers[index] for index in range(size)]

    def start(self, index: int) -> Process:
        """Start the process of one rank, away from the terminal's signals."""
        arguments = [os.fspath(self.directory), str(index)]
        if self.output == "file":
            # A fork of a process that has torch imported: a start takes seconds of a core else.
            return current_fork_client().fork_worker(arguments)
        command = [sys.executable, "-m", "kadril.testing.worker", *arguments]
        return subprocess.Popen(
            [*command, str(os.getpid()), self.output],
            stdin=subprocess.DEVNULL,
            env=worker_environment(),
            start_new_session=True,
        )

    def check(self) -> None:
        """Raise if a process ended before it was up."""
        for index, process in list(self.starting.items()):
            code = process.poll()
            if code is not None:
                del self.starting[index]
                raise PoolError(
                    f"rank {index} of the test pool {describe_exit(code)} while it started:\n"
                    + read_tail(output_path(self.directory, index))
                )

    def discard(self, worker: Worker) -> None:
        """End a worker; the next `acquire` starts another."""
        worker.kill()
        self.workers.pop(worker.index, None)

    def close(self) -> None:
        """Ask all to quit, kill those who do not, and remove the directory."""
        for worker in self.workers.values():
            ask_to_quit(worker)
        for process in self.starting.values():
            process.kill()
        processes = [worker.process for worker in self.workers.values()]
        end_all([*processes, *self.starting.values()])
        for worker in self.workers.values():
            worker.connection.close()
        self.workers.clear()
        self.starting.clear()
        self.listener.close()
        remove_directory(self.directory)
        release(self)


def ask_to_quit(worker: Worker) -> None:
    """Ask a worker to close its worlds and exit."""
    with contextlib.suppress(OSError):  # it is gone already
        worker.ask(Quit())


def end_all(processes: Sequence[Process]) -> None:
    """Wait for processes to exit; kill those who do not in time."""
    deadline = time.monotonic() + QUIT_TIMEOUT
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
