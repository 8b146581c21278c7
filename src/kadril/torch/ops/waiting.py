"""Waiting for other ranks: `barrier` for their coming, `join` for their end."""

from __future__ import annotations

from kadril.engine import Verb
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.torch.ops.staging import conductor_of

__all__ = ["barrier", "join"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank of the set has called it.

    It may overtake operations that not all ranks have asked for yet.

    Raises:
        ValueError: this rank is not in the set.
    """
    conductor = conductor_of(process_set)
    conductor.wait(conductor.submit(Verb.BARRIER))


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and return when every rank has said so.

    Meanwhile it takes part in the all-reduces of the others with values that change nothing: zero
    for Sum, one for Product, the largest value for Min and the smallest for Max. Average divides
    the sum by the number of all ranks, the joined ones included. A barrier counts it as come. Other
    operations need every rank, and fail on those that ask for them.

    Args:
        device: not used.

    Returns:
        The rank that joined last, the same everywhere.
    """
    conductor = conductor_of(global_process_set)
    completion = conductor.submit(Verb.JOIN, name="join")
    conductor.wait(completion)
    conductor.restart_count()  # ranks may have made different numbers of un-named requests
    return completion.last_joined
