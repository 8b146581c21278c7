"""Handles: what asynchronous operations return, to be polled and synchronized."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from kadril._native import Completion
from kadril.engine import ProcessSetConductor
from kadril.shared_engine.context import context

__all__ = ["forget_all", "keep", "poll", "synchronize"]


class Pending(NamedTuple):
    """An operation under way; the tensors it works on stay alive with it."""

    conductor: ProcessSetConductor
    completion: Completion
    result: Any  # what `synchronize` returns, or a function of the completion that makes it
    kept: Any


_pending: dict[int, Pending] = {}
_numbers = itertools.count(1)


def keep(
    conductor: ProcessSetConductor,
    completion: Completion,
    result: Any,
    kept: Any = None,
) -> int:
    """Remember an operation, and give its handle.

    Args:
        conductor: that runs it.
        completion: of the request.
        result: the tensor that it fills, or a function of the completion that makes the result.
        kept: whatever has to stay alive until then.
    """
    handle = next(_numbers)
    _pending[handle] = tuple.__new__(Pending, (conductor, completion, result, kept))
    return handle


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once.

    Raises:
        ValueError: there is no such handle, or it was synchronized.
    """
    pending = _pending.get(handle)
    if pending is None:
        raise ValueError(f"there is no operation under way with handle {handle}")
    if pending.completion.is_done:
        return True
    context()  # in a child made by fork nobody works on it
    return False


def synchronize(handle: int) -> Any:
    """Sleep until an operation is done and give its result.

    An unknown handle, or one that was synchronized, gives None.

    Raises:
        MismatchError: ranks asked for different things under its name; the next operation works.
        PeerLost, Stalled: a rank is gone, or too late.
        ClosedError: the engine was shut down.
    """
    pending = _pending.get(handle)
    if pending is None:
        return None
    conductor, completion, result, _ = pending
    try:
        conductor.wait(completion)
    except Exception:
        _pending.pop(handle, None)
        raise
    # Not before: an interrupt must leave the memory that is being written to alive.
    _pending.pop(handle, None)
    return result(completion) if type(result) is Finish else result


class Finish:
    """Makes the result of an operation when it is done."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Completion], Any]) -> None:
        self.function = function

    def __call__(self, completion: Completion) -> Any:
        return self.function(completion)


def forget_all() -> None:
    """Forget operations of an engine that is gone."""
    for handle, pending in list(_pending.items()):
        if pending.completion.is_done:
            del _pending[handle]
