"""The session's side of the fork server: have ranks forked, and hear what becomes of them."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kadril.testing.fork_messages import MAX_MESSAGE, Change, Done, Fork, ForkWorker, Load, Reap
from kadril.testing.leaks import keep, release
from kadril.testing.messages import Target
from kadril.testing.starting import START_TIMEOUT, PoolError, worker_environment

__all__ = ["ForkClient", "ForkedProcess", "close_fork_client", "current_fork_client"]

REQUEST_TIMEOUT = 30.0


class ForkClient:
    """Starts a process with torch imported, and has ranks forked from it.

    Raises:
        PoolError: it could not be started.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listeners: dict[int, Callable[[Change], None]] = {}
        self.loaded: set[Target] = set()
        with theirs:
            command = [sys.executable, "-m", "kadril.testing.fork_server"]
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                env=worker_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        keep(self, pids=[self.process.pid], fds=[self.control.fileno()])
        try:
            self.answer(START_TIMEOUT)
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self.control.fileno() >= 0

    def load(self, target: Target) -> None:
        """Have the module of a function imported."""
        module = target._replace(qualname="")
        if module not in self.loaded:
            self.request(Load(target, tuple(sys.path)), timeout=START_TIMEOUT)
            self.loaded.add(module)

    def fork(
        self,
        rank: int,
        directory: Path,
        descriptors: Sequence[int],
        listener: Callable[[Change], None],
        namespaces: Sequence[str] = (),
    ) -> int:
        """Fork a rank; `listener` hears of its stops and its end. Returns its pid."""
        request = Fork(rank, os.fspath(directory), tuple(namespaces))
        pid = self.request(request, descriptors).pid
        self.listeners[pid] = listener
        return pid

    def fork_worker(self, arguments: Sequence[str]) -> ForkedProcess:
        """Fork a rank of the standing pool; see `kadril.testing.worker`."""
        request = ForkWorker(tuple(arguments), worker_environment())
        process = ForkedProcess(self, self.request(request).pid)
        self.listeners[process.pid] = process.hear
        return process

    def hear_changes(self, timeout: float = 0.0) -> None:
        """Take changes that have come, or wait for the next one; listeners hear of them."""
        while self.is_open and select.select([self.control], [], [], timeout)[0]:
            self.receive()
            timeout = 0.0

    def reap(self, pids: Sequence[int]) -> None:
        """Let go of ranks that have ended; their pids may be reused from here on."""
        if pids:
            self.request(Reap(tuple(pids)))
        for pid in pids:
            self.listeners.pop(pid, None)

    def request(
        self,
        request: object,
        descriptors: Sequence[int] = (),
        timeout: float = REQUEST_TIMEOUT,
    ) -> Done:
        """Send a request and wait until it is carried out.

        Raises:
            PoolError: it went wrong.
        """
        socket.send_fds(self.control, [pickle.dumps(request)], list(descriptors))
        return self.answer(timeout)

    def answer(self, timeout: float) -> Done:
        """Wait for the answer to a request; changes that come before it go to their listeners."""
        deadline = time.monotonic() + timeout
        while select.select([self.control], [], [], max(0.0, deadline - time.monotonic()))[0]:
            message = self.receive()
            if isinstance(message, Done):
                if message.problem:
                    raise PoolError(f"the process that forks ranks: {message.problem}")
                return message
        raise PoolError(f"the process that forks ranks did not answer within {timeout:g} s")

    def receive(self) -> Any:
        """Take one message; a change goes to its listener."""
        data = self.control.recv(MAX_MESSAGE)
        if not data:
            close_fork_client()  # the kernel has killed all ranks that it forked
            raise PoolError("the process that forks ranks is gone; the next Ranks starts another")
        message = pickle.loads(data)
        if isinstance(message, Change) and message.pid in self.listeners:
            self.listeners[message.pid](message)
        return message

    def close(self) -> None:
        """End it, and with it all ranks that it has forked."""
        self.control.close()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        release(self)


class ForkedProcess:
    """A process that the fork server has forked, with the methods of `subprocess.Popen`."""

    def __init__(self, client: ForkClient, pid: int) -> None:
        self.client = client
        self.pid = pid
        self.returncode: int | None = None

    def hear(self, change: Change) -> None:
        """Learn how it ended."""
        if change.state == "ended":
            self.returncode = change.code

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that ended it; None while it lives."""
        return self.look(0.0)

    def look(self, timeout: float) -> int | None:
        """Do what `poll` does, after news of any process or `timeout` seconds."""
        if self.returncode is not None:
            return self.returncode
        with contextlib.suppress(PoolError):  # the server is gone, and its children with it
            self.client.hear_changes(timeout)
        if self.returncode is not None:
            self.client.reap([self.pid])
        elif not self.client.is_open:
            self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns what `poll` returns.

        Raises:
            subprocess.TimeoutExpired: it lives on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.look(0.2)) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


_current: ForkClient | None = None


def current_fork_client() -> ForkClient:
    """Return the client of this process; its server is started when first asked for."""
    global _current  # noqa: PLW0603 - one per process is the point
    if _current is None:
        _current = ForkClient()
        atexit.register(close_fork_client)
    return _current


def close_fork_client() -> None:
    """End the fork server of this process, if it has one."""
    global _current
    # A child made by fork has a copy of it that is not its own.
    if _current is not None and _current.owner == os.getpid():
        client, _current = _current, None
        client.close()
