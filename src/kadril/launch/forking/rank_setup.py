"""Steps by which a forked rank becomes as one that was started, before its program begins."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kadril.launch.forking.visible_words import show_variables, show_words
from kadril.launch.local.parent_death import die_with_parent

__all__ = ["become_rank"]

# Descriptors that came are moved above these before they are put where they belong.
FIRST_FREE = 256


def become_rank(
    request: Mapping[str, Any], descriptors: Sequence[int], words: Sequence[str], launcher: int
) -> None:
    """Take over variables, descriptors and processors of a rank.

    Args:
        request: what `ForkClient.fork` has asked for.
        descriptors: that came with it.
        words: of the command line, from the program on.
        launcher: the parent of this process.
    """
    die_with_parent(launcher)
    os.setsid()
    if request["processors"]:
        os.sched_setaffinity(0, request["processors"])
    place_descriptors(descriptors, request["descriptors"])
    for name in request["unset"]:
        os.environ.pop(name, None)
    os.environ.update(request["set"])
    show_words([*sys.orig_argv[: sys.orig_argv.index("-m")], *words])
    show_variables(dict(os.environb))
    draw_again()


def place_descriptors(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give each descriptor its number; programs that the rank starts inherit them."""
    # One may have come under the number that another one is to get.
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE) for each in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)


def draw_again() -> None:
    """Seed numpy's own generator anew: ranks must not draw what all others draw.

    Python seeds its own after a fork, and torch's is the same in every process.
    """
    generators = sys.modules.get("numpy.random")
    if generators is not None:
        generators.seed()
