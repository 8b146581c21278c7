"""`run`: training again after a rank was lost, or hosts came or went."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from kadril.errors import PeerLost, Stalled
from kadril.torch.basics import init, shutdown
from kadril.torch.elastic.interrupt import HostsUpdatedInterrupt
from kadril.torch.elastic.state import State

__all__ = ["reset", "run"]

logger = logging.getLogger("kadril")

P = ParamSpec("P")
R = TypeVar("R")
StateT = TypeVar("StateT", bound=State)


def run(func: Callable[Concatenate[StateT, P], R]) -> Callable[Concatenate[StateT, P], R]:
    """Make a training function go on when ranks change; collective.

        while not done:
            state.sync()             rank 0's state to all
            func(state, ...)         done when it returns
              PeerLost, Stalled      a rank is gone, or too late: back to the last commit
              HostsUpdatedInterrupt  hosts came or went: the state is kept
            reset()                  the ranks meet again
            state.on_reset()

    Any other error is raised: a `MismatchError` is an error in the program, and would come again.

    Args:
        func: takes a `State` first. It is called again with the same arguments, so it has to go on
            from what the state says.
    """

    @functools.wraps(func)
    def runs(state: StateT, /, *args: P.args, **kwargs: P.kwargs) -> R:
        skips_sync = False
        while True:
            try:
                if not skips_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except (PeerLost, Stalled) as error:
                logger.warning("elastic: back to the last commit, since %s", error)
                state.restore()
                skips_sync = False
            except HostsUpdatedInterrupt as interrupt:
                logger.info("elastic: %s", interrupt)
                skips_sync = interrupt.skip_sync
            reset()
            state.on_reset()

    return runs


def reset() -> None:
    """Leave the world and meet again; collective over those who come."""
    shutdown()
    init()
