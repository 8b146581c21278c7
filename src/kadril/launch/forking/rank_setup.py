"""Steps by which a forked rank becomes as one that was started, before its program begins.

    launcher                                    rank
       |  <------------------ pid ----------------|  as soon as it is there
       |  <------------- ready, or why not -------|  it has its session, descriptors, processors
       |  ------------------ go ----------------> |  the program begins

A launcher that has given up waiting has closed its end; then the rank ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kadril.launch.forking.visible_words import show_variables, show_words
from kadril.launch.local.parent_death import die_with_parent

__all__ = ["become_rank", "tell"]


def tell(line: socket.socket, **answer: object) -> None:
    """Tell the launcher something; one that does not listen any more has no use for it."""
    with contextlib.suppress(OSError):
        line.send(json.dumps(answer).encode())


def become_rank(
    request: Mapping[str, Any], descriptors: Sequence[int], words: Sequence[str], launcher: int
) -> None:
    """Take over variables, descriptors and processors of a rank; returns when it may begin.

    Args:
        request: what `ForkClient.fork` has asked for.
        descriptors: that came with it; the first is the line to the launcher.
        words: of the command line, from the program on.
        launcher: the parent of this process.
    """
    first_free = max(request["descriptors"]) + 1
    (number, *others) = move_above(first_free, descriptors)
    with socket.socket(fileno=number) as line:
        try:
            set_up(request, others, words, launcher)
        except Exception as error:  # nobody reads what this process writes before it is set up
            tell(line, problem=f"{type(error).__name__}: {error}")
            os._exit(1)
        tell(line, problem="")
        if line.recv(1) != b"g":
            os._exit(1)


def set_up(
    request: Mapping[str, Any], descriptors: Sequence[int], words: Sequence[str], launcher: int
) -> None:
    """Take over what a rank has."""
    die_with_parent(launcher)
    os.setsid()
    for descriptor, number in zip(descriptors, request["descriptors"], strict=True):
        os.dup2(descriptor, number, inheritable=True)  # programs that the rank starts inherit it
        os.close(descriptor)
    if request["processors"]:
        os.sched_setaffinity(0, request["processors"])
    for name in request["unset"]:
        os.environ.pop(name, None)
    os.environ.update(request["set"])
    show_words([*sys.orig_argv[: sys.orig_argv.index("-m")], *words])
    show_variables(dict(os.environb))
    draw_again()


def move_above(first_free: int, descriptors: Sequence[int]) -> list[int]:
    """Give descriptors other numbers: one may have come under that which another is to get."""
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, first_free) for each in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return moved


def draw_again() -> None:
    """Seed numpy's own generator anew: ranks must not draw what all others draw.

    Python seeds its own after a fork, and torch's is the same in every process.
    """
    generators = sys.modules.get("numpy.random")
    if generators is not None:
        generators.seed()
