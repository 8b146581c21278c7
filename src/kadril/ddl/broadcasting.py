"""Broadcast from rank 0: the same parameters on all learners before training begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril.collectives.memory import AnyArray
from kadril.ddl.devices import synchronize
from kadril.ddl.learner import current_session
from kadril.ddl.packing import pack, unpack, write_back
from kadril.ddl.parameters import ParameterCall, describe_parameters
from kadril.transport.buffer import as_buffer

__all__ = ["bcast", "bcast_", "bcast_n_"]


def bcast(x: AnyArray, *, name: str = "") -> AnyArray:
    """Return a new array with the values of rank 0's, on every learner.

    Args:
        x: torch tensor or numpy array, of the same shape and dtype on all learners. A parameter of
            a model may be given: its values are sent.
        name: compared between learners, and shown in errors.

    Raises:
        MismatchError: learners broadcast different parameters; on all of them.
        ValueError: `x` was computed from something that requires a gradient.
        NotInitializedError: `init()` was not called.
    """
    result: AnyArray
    (result,) = sent("bcast", [x], [name] if name else None)
    return result


def bcast_(x: AnyArray, *, name: str = "") -> AnyArray:
    """Overwrite `x` by rank 0's values; see `bcast`. Returns `x`."""
    write_back(sent("bcast_", [x], [name] if name else None), [x])
    return x


def bcast_n_(
    tensors: Sequence[AnyArray], *, names: Sequence[str] | None = None
) -> Sequence[AnyArray]:
    """Overwrite a list of arrays by rank 0's in one shot; see `bcast`. Returns the list."""
    listed = list(tensors)
    write_back(sent("bcast_n_", listed, names), listed)
    return listed


def sent(operation: str, arrays: Sequence[Any], names: Sequence[str] | None) -> list[Any]:
    """Broadcast a list, and return new arrays."""
    session = current_session()
    for array in arrays:
        if not hasattr(array, "shape"):
            as_buffer(array)  # says what was expected
    if session.options.dev_sync:
        synchronize(arrays)
    call = ParameterCall(operation, (), describe_parameters(arrays, names))
    packed = pack([values_of(array) for array in arrays], "broadcast")
    session.broadcast(call, packed)
    results = unpack(packed, arrays)
    if session.options.dev_sync == 2:
        synchronize(results)
    return results


def values_of(array: Any) -> Any:
    """The values of a parameter: it begins a graph, so none is cut off by taking them."""
    if isinstance(array, torch.Tensor) and array.is_leaf:
        return array.detach()
    return array
