"""State of an elastic job, without a framework."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .._forward import forward

# What needs torch is looked up last.
__getattr__ = forward("kadril.shared_engine.elastic", "kadril.torch.elastic")


class WorkerNotificationManager:
    """Passes on to states that hosts came or went.

    The launcher of kadril tells each rank by itself; this is for programs that tell their own.
    """

    def __init__(self) -> None:
        self._listeners: list[Any] = []

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no service to connect to. Arguments are taken for scripts' sake."""

    def register_listener(self, listener: Any) -> None:
        """Pass on what comes to a state, or whatever has `on_hosts_updated`."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Any) -> None:
        """Stop passing on to it."""
        self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tell all listeners that hosts came or went."""
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()


def run_fn(func: Callable[..., Any], reset: Callable[[], object]) -> Callable[..., Any]:
    """Make a training function go on when ranks change, as `hvd.elastic.run` does.

    Args:
        func: takes a state first.
        reset: leaves the world and has the ranks meet again: `shutdown()`, then `init()`.
    """
    # not at the top: it loads the engine and numpy, for which `import horovod` should not wait
    from kadril.shared_engine.elastic.runner import reset as reset_ranks
    from kadril.shared_engine.elastic.runner import run_with

    runs = run_with(func, meet=functools.partial(reset_ranks, reset))

    @functools.wraps(func)
    def listens(state: Any, *args: Any, **kwargs: Any) -> Any:
        notification_manager.register_listener(state)
        try:
            return runs(state, *args, **kwargs)
        finally:
            notification_manager.remove_listener(state)

    return listens
