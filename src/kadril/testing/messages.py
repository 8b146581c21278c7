"""Messages between the test session and its ranks.

    session                       rank
       |  -- (number, request) ->  |     one request at a time, answered in order
       |  <---------- Reply -----  |     with the number of its request

They talk over a private unix socket with `multiprocessing.connection`, which pickles. What is
pickled with classes of the test module travels as bytes inside, so that it is read only after that
module was imported.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "Abandon",
    "Barrier",
    "Close",
    "Hello",
    "Open",
    "Quit",
    "Reply",
    "Request",
    "Run",
    "Target",
    "Verdict",
    "WorldKey",
]

Verdict: TypeAlias = Literal["passed", "failed", "skipped", "xfailed"]


class Target(NamedTuple):
    """A function, by file, module and name, by which another process finds it."""

    path: str
    module: str
    qualname: str


class WorldKey(NamedTuple):
    """Key of a world: tests with the same key share one."""

    transport: str
    size: int
    options: tuple[tuple[str, object], ...] = ()


@dataclasses.dataclass(frozen=True)
class Hello:
    """The first message of a rank: it is up, and has imported torch."""

    index: int
    pid: int


@dataclasses.dataclass(frozen=True)
class Open:
    """Open a world; a listening socket follows for rank 0 where `listen` is true.

    Ranks on several hosts meet at `address`, rank 0's, instead of at `path`.
    """

    key: WorldKey
    rank: int
    path: str
    secret: bytes
    job: str
    listen: bool
    address: str = ""


@dataclasses.dataclass(frozen=True)
class Run:
    """Call a function with a world. `payload` holds the pickled arguments and warning filters."""

    key: WorldKey
    target: Target
    payload: bytes
    import_path: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Barrier:
    """Wait for the other ranks of a world once: shows whether they are in step."""

    key: WorldKey


@dataclasses.dataclass(frozen=True)
class Abandon:
    """Revoke a world, so that ranks that still wait in it are let go."""

    key: WorldKey
    reason: str


@dataclasses.dataclass(frozen=True)
class Close:
    """Close a world."""

    key: WorldKey


@dataclasses.dataclass(frozen=True)
class Quit:
    """Close everything and exit; not answered."""


Request: TypeAlias = Open | Run | Barrier | Abandon | Close | Quit


@dataclasses.dataclass(frozen=True)
class Reply:
    """The answer to one request.

    Attributes:
        number: number of the request.
        verdict: how the request ended.
        value: the pickled result, where it passed.
        text: the traceback of a failure, the reason of a skip.
        kind: class of the exception.
        summary: the exception in one line.
        at: CLOCK_MONOTONIC of the end, comparable between the processes of a host.
    """

    number: int
    verdict: Verdict
    value: bytes = b""
    text: str = ""
    kind: str = ""
    summary: str = ""
    at: float = 0.0
