"""State whose objects travel by `kadril.torch.broadcast_object`, unless it is told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kadril.shared_engine.elastic import state
from kadril.torch.objects import broadcast_object

__all__ = ["ObjectState", "State", "send_object"]

# A state has whatever the program put into it.
send_object = partial(broadcast_object, allow_pickle=True)


class State(state.State):
    """Base of all states; derive from it for a kind of your own.

    Args:
        bcast_object: gives rank 0's object to all ranks.
        get_rank: rank of this process.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] | None = None,
        get_rank: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(send_object if bcast_object is None else bcast_object, get_rank)


class ObjectState(state.ObjectState, State):
    """State made of plain values, which are its attributes.

    Args:
        bcast_object: see `State`.
        get_rank: see `State`.
        **kwargs: names and first values; anything that can be copied and pickled.
    """
