"""Standpoint of a waiting thread: what others are told of it, to find deadlocks and to report.

A deadlock is proven only of a rank all of whose threads wait (see `native/waits.h`), so every
thread that might still make a call must be counted. Left out are threads of kadril that never call
a transport, and those of libraries that do one thing for ever which is no call: whether any other
thread will make its first call one day cannot be known. What cannot be counted: a thread of C++
that has not run Python yet, and the handler of a signal that is still to come. Neither is a place
to make collective calls from.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from kadril.errors import name_ranks
from kadril.frameworks import framework_folders

__all__ = [
    "Standpoint",
    "call_site",
    "describe_group",
    "helper_threads",
    "num_calling_threads",
]

# How the names of threads begin that never call a transport.
BYSTANDERS = (
    "kadril-acceptor",
    "kadril-c10d",
    "kadril-notes",
    "kadril-tcp-farewell",
    "kadril-testing",
)

# Where threads of libraries begin that never make a call: file and function.
HELPERS = (
    ("multiprocessing/queues.py", "_feed"),
    ("torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop"),
    ("tqdm/_monitor.py", "run"),
)

# Packages through which a program's own line gets here.
OWN_FOLDERS = tuple(
    f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], *framework_folders())
)


class Standpoint:
    """Describes a thread of this rank that waits in a group; called by the native core."""

    def __init__(self, world_ranks: Sequence[int], rank: int) -> None:
        self.world_rank = world_ranks[rank]
        self.group = describe_group(world_ranks)

    def __call__(self, call: str) -> tuple[int, int, str]:
        """Return the number of threads that might call, the world rank, and where this one is."""
        return num_calling_threads(), self.world_rank, f"{call} of {self.group} at {call_site()}"


def num_calling_threads() -> int:
    """Number of threads that might call a transport, known to `threading` or not."""
    idle = {thread.ident for thread in threading.enumerate() if thread.name.startswith(BYSTANDERS)}
    # In no variable: this frame would hold itself, and with it all that its callers refer to.
    return sum(
        not (ident in idle or is_helper(frame)) for ident, frame in sys._current_frames().items()
    )


def helper_threads() -> set[int]:
    """Return the threads of libraries that never make a call."""
    return {ident for ident, frame in sys._current_frames().items() if is_helper(frame)}


def is_helper(frame: FrameType) -> bool:
    """Whether a thread that is in this frame began in a function of `HELPERS`."""
    entry: FrameType | None = None
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_filename != threading.__file__:
            entry = at
        at = at.f_back
    if entry is None:
        return False
    code = entry.f_code
    return any(code.co_name == name and code.co_filename.endswith(file) for file, name in HELPERS)


def describe_group(world_ranks: Sequence[int], kind: str = "group") -> str:
    """Return a group by its ranks: "the group of ranks 0, 2"."""
    return f"the {kind} of {name_ranks(world_ranks, most=8)}"


def call_site() -> str:
    """Return "train.py:33", the innermost line of the program itself that led here."""
    frame: FrameType | None = sys._getframe(1)
    site = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OWN_FOLDERS) and not file.startswith("<frozen"):
            return f"{file}:{frame.f_lineno}"
        site = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return site
