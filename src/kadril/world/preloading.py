"""Modules that a process may have loaded before it is forked into a rank.

Loading any of these starts no thread that a child would miss, and opens nothing that it must not
have.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

__all__ = ["is_worth_preloading", "loaded_modules"]

# They take seconds.
SLOW = ("torch", "torch._dynamo")

PRELOADABLE = (
    "numpy",
    *SLOW,
    "torch.distributed",
    "torch.utils.data",
    "kadril.transport.shm",
    "kadril.world",
    "kadril.torch",
    "kadril.sharded",
    "kadril.nn",
)


def loaded_modules() -> list[str]:
    """Return those that this process has loaded."""
    return [name for name in PRELOADABLE if name in sys.modules]


def is_worth_preloading(modules: Collection[str]) -> bool:
    """Whether a fork is much quicker than a process that loads them itself.

    A name that is not in the table is no reason: it came from a process, and is not trusted.
    """
    return set(modules) <= set(PRELOADABLE) and any(name in modules for name in SLOW)
