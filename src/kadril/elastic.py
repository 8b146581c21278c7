"""Training that outlives a change of its ranks, for programs without a framework.

    kadril.init()
    state = kadril.elastic.ObjectState(step=0, weights=np.zeros(3))

    @kadril.elastic.run
    def train(state):
        while state.step < 100:
            state.weights += kadril.allreduce(gradients_of(state.weights))
            state.step += 1
            if state.step % 10 == 0:
                state.commit()

    train(state)

`kadril.torch.elastic`, `kadril.tensorflow.elastic` and `kadril.keras.elastic` have states of models
and optimizers; all of them stand on this. Start the job with `kadril run --min-np`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kadril.collectives import broadcast, broadcast_
from kadril.shared_engine.elastic import HostsUpdatedInterrupt, HostUpdateResult, reset, run, state
from kadril.shared_engine.object_codec import decode, encode
from kadril.world import current, rank

__all__ = [
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "reset",
    "run",
]

FAILED = -1  # in place of a length: the object could not be pickled


def broadcast_object(value: Any) -> Any:
    """Return rank 0's object on every rank; collective. Any object may be part of a state.

    Raises:
        ValueError: rank 0 cannot pickle it; raised on every rank.
    """
    is_root = current().rank == 0
    data, problem = b"", None
    if is_root:
        try:
            data = encode(value)
        except Exception as error:  # whatever an object's own __reduce__ may raise
            problem = error
    length = len(data) if problem is None else FAILED
    length = int(broadcast(np.array([length]), name="elastic.length")[0])
    if length == FAILED:
        raise ValueError("rank 0 cannot pickle what is in its state") from problem
    room = np.frombuffer(bytearray(data) if is_root else bytearray(length), np.uint8)
    broadcast_(room, name="elastic.bytes")
    return value if is_root else decode(room.data, allow_pickle=True)


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
        super().__init__(bcast_object or broadcast_object, get_rank or rank)


class ObjectState(state.ObjectState, State):
    """State made of plain values, arrays of numpy among them, which are its attributes.

    Args:
        bcast_object: see `State`.
        get_rank: see `State`.
        **kwargs: names and first values; anything that can be copied and pickled.
    """
