"""Process groups that are kept alive, because their end would wait for a thread.

The end of a gloo group waits for the threads of that group. Two cases where this must not be:

- a group was given up while gloo waits in it for a rank that may never come;
- a child made by fork() has its parent's groups, but not their threads.

Such a group gets a reference that no object has, so that not even the end of the interpreter
ends it.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, TypeAlias

import torch.distributed as dist

__all__ = ["Group", "keep_in_children", "keep_until_done", "release_finished"]

# A process group: torch's stubs leave its collectives out.
Group: TypeAlias = Any

unfinished: list[tuple[Group, dist.Work]] = []

living: weakref.WeakSet[Group] = weakref.WeakSet()


def keep_until_done(group: Group, work: dist.Work) -> None:
    """Keep a group as long as gloo waits for this work in it."""
    hold(group)
    unfinished.append((group, work))


def release_finished() -> None:
    """Let go of groups whose work is done."""
    for place in reversed(range(len(unfinished))):
        group, work = unfinished[place]
        if work.is_completed():
            del unfinished[place]
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(group))


def keep_in_children(group: Group) -> Group:
    """Keep a group alive in children made by fork(); return the group."""
    living.add(group)
    return group


def hold(group: Group) -> None:
    """Add a reference that no object has."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def hold_all() -> None:
    """Hold the parent's groups in a child made by fork(), so that it ends none of them."""
    for group in living:
        hold(group)


os.register_at_fork(after_in_child=hold_all)
