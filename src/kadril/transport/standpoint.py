"""Standpoint of a waiting thread: what others are told of it, to find deadlocks and to report.

A deadlock is proven only of a rank all of whose threads wait (see `native/waits.h`), so every
thread that might still make a call must be counted. Threads of kadril that never call a transport
are left out. What cannot be counted: a thread of C++ that has not run Python yet, and the handler
of a signal that is still to come. Neither is a place to make collective calls from.
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

__all__ = ["Standpoint", "call_site", "describe_group", "num_calling_threads"]

# How the names of threads begin that never call a transport.
BYSTANDERS = ("kadril-acceptor", "kadril-testing", "kadril-tcp-farewell", "kadril-notes")

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
    return sum(ident not in idle for ident in sys._current_frames())


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
