"""The messages between the session and its fork server.

session                            fork server
|  -- Load(target) ------------>  |  imports the module of the test
|  -- Fork(rank) + sockets ---->  |  forks; the rank talks to the session itself
|  -- ForkWorker(arguments) --->  |  forks a rank of the standing pool
|  <---------- Change(pid) -----  |  a rank has stopped, continued, or ended, with the time
|  -- Reap(pids) -------------->  |
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from kadril.testing.messages import Target

__all__ = ["MAX_MESSAGE", "Change", "Done", "Fork", "ForkWorker", "Load", "Reap", "Request"]

MAX_MESSAGE = 64 * 1024


@dataclasses.dataclass(frozen=True)
class Load:
    """Import a module before ranks are forked that would each have to."""

    target: Target
    import_path: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Fork:
    """Fork a rank. With it come its connection and, for a rank that is to listen, a socket.

    `namespaces` are files of those that it is to enter first.
    """

    rank: int
    directory: str
    namespaces: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ForkWorker:
    """Fork a process that does what `python -m kadril.testing.worker` does.

    `arguments` are its directory and its index.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Reap:
    """Request to forget children that have ended."""

    pids: tuple[int, ...]


Request: TypeAlias = Load | Fork | ForkWorker | Reap


@dataclasses.dataclass(frozen=True)
class Done:
    """The answer to a request: the pid of a fork, or what went wrong."""

    pid: int = 0
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Change:
    """A child is in another state since `at`; `code` is its exit code, or minus its signal."""

    pid: int
    state: Literal["stopped", "continued", "ended"]
    at: float
    code: int = 0
