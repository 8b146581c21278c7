"""Context that `init()` started in this process: an engine, with its process sets."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from kadril.engine import Engine
from kadril.errors import ClosedError, NotInitializedError
from kadril.world import current

if TYPE_CHECKING:
    from kadril.shared_engine.process_sets import Registry

__all__ = ["Context", "context", "give_up_engine", "holder", "is_given_up", "numbered"]


class Context:
    """An engine and the process sets that are registered with it."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self.engine = engine
        self.registry = registry
        self.pid = os.getpid()


class Holder:
    """Holds the context of this process, if there is one.

    Attributes:
        num_named: how many names of a kind were given since the last `shutdown()`.
    """

    __slots__ = ("context", "num_named")

    def __init__(self) -> None:
        self.context: Context | None = None
        self.num_named: Counter[str] = Counter()


holder = Holder()


def give_up_engine() -> None:
    """Say that the ranks leave the present engine, if there is one; local.

    From here on rounds of gradients are dropped rather than reduced with a rank that is lost.
    """
    if holder.context is not None:
        holder.context.engine.is_given_up = True


def is_given_up() -> bool:
    """Whether the present engine was given up."""
    return holder.context is not None and holder.context.engine.is_given_up


def numbered(name: str) -> str:
    """Return a name, with a number from the second of that name on since the last `shutdown()`.

    Ranks that have lived through different numbers of worlds, as elastic ones do, count alike.
    """
    number = holder.num_named[name]
    holder.num_named[name] += 1
    return f"{name}_{number}" if number else name


def context() -> Context:
    """Return what `init()` started.

    Raises:
        NotInitializedError: it was not called, or `shutdown()` was called since.
        ForkedError: this is a child made by fork of a rank.
    """
    found = holder.context
    if found is not None and found.pid != os.getpid():
        found.engine.world.check_usable("kadril.torch")
    if found is not None and not found.engine.is_closed:
        return found
    # The `init()` to call is that of this module, which opens a world too; so it is the one named.
    message = "kadril.torch is not initialized; call hvd.init() first"
    try:
        current()
    except NotInitializedError:
        pass
    except ClosedError:
        message = "kadril.torch was shut down; call hvd.init() again"
    raise NotInitializedError(message)
