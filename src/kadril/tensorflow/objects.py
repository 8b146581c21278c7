"""Objects, from one rank to all or from all to all.

Plain data travels by default; `allow_pickle=True` takes any object, and trusts the other ranks as
much as the program that all of them run (`shared_engine/object_codec.py`).

In eager mode objects are given at once; in a TF1 graph they need a session (`session=`, or the
default one), in which the bytes are fed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kadril.shared_engine.object_codec import (
    check_plain,
    decode,
    encode,
    is_pickle_allowed,
)
from kadril.tensorflow.basics import ProcessSet, global_process_set, rank
from kadril.tensorflow.framework import tf
from kadril.tensorflow.ops import allgather, broadcast

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn"]


# A length that says that an object could not be sent, so that no rank waits for its bytes.
FAILED = -1


class ObjectMover:
    """Moves arrays of bytes: by eager ops, or by nodes of a graph that are made once."""

    def __init__(
        self, session: Any, name: str, process_set: ProcessSet, allow_pickle: bool | None
    ) -> None:
        self.name = name
        self._allow_pickle = allow_pickle
        self.process_set = process_set
        self._session = session
        self._nodes: dict[str, tuple[Any, Any]] = {}

    def run(self, kind: str, array: Any, operation: Callable[[Any, str], Any]) -> Any:
        """Do an operation with an array, and give the resulting array."""
        if tf.executing_eagerly():
            return operation(tf.convert_to_tensor(array), f"{self.name}.{kind}").numpy()
        session = self._session or tf.compat.v1.get_default_session()
        if session is None:
            raise RuntimeError("objects in a TF1 graph need a session: pass session=")
        if kind not in self._nodes:
            with session.graph.as_default():
                shape = [None] * np.ndim(array)
                given = tf.compat.v1.placeholder(np.asarray(array).dtype, shape)
                self._nodes[kind] = (given, operation(given, f"{self.name}.{kind}"))
        given, result = self._nodes[kind]
        return session.run(result, feed_dict={given: array})

    def _pack(self, obj: Any, is_allowed: bool) -> tuple[Any, Exception | None]:
        """Return the bytes of an object as an array, or why the others cannot be sent it."""
        try:
            data = encode(obj)
            check_plain(data, allow_pickle=is_allowed)
        except Exception as error:  # whatever an object's own __reduce__ may raise
            return np.zeros(0, np.uint8), error
        return np.frombuffer(data, np.uint8), None

    def broadcast(self, obj: Any, root_rank: int) -> Any:
        """The root's object."""
        is_root = rank() == root_rank
        is_allowed = is_pickle_allowed(self._allow_pickle)
        data, error = self._pack(obj, is_allowed) if is_root else (np.zeros(0, np.uint8), None)

        def operate(tensor: Any, name: str) -> Any:
            return broadcast(tensor, root_rank, name=name, process_set=self.process_set)

        (length,) = self.run("size", as_length(data, error), operate)
        if length == FAILED:
            raise refusal(f"{self.name}: rank {root_rank}", error) from error
        received = data if is_root else np.zeros(int(length), np.uint8)
        received = self.run("data", received, operate)
        return obj if is_root else decode(received.tobytes(), allow_pickle=is_allowed)

    def allgather(self, obj: Any) -> list[Any]:
        """The objects of all ranks."""
        is_allowed = is_pickle_allowed(self._allow_pickle)
        data, error = self._pack(obj, is_allowed)

        def operate(tensor: Any, name: str) -> Any:
            return allgather(tensor, name=name, process_set=self.process_set)

        lengths = self.run("sizes", as_length(data, error), operate)
        if FAILED in lengths:
            places = np.flatnonzero(lengths == FAILED).tolist()
            sender = f"{self.name}: position(s) {places} of the process set"
            raise refusal(sender, error) from error
        received = self.run("data", data, operate)
        ends = np.cumsum(lengths)
        return [
            decode(received[end - length : end].tobytes(), allow_pickle=is_allowed)
            for end, length in zip(ends, lengths, strict=True)
        ]


def as_length(data: Any, error: Exception | None) -> Any:
    """Return the number of bytes as an array, or `FAILED`."""
    return np.array([data.size if error is None else FAILED], np.int64)


def refusal(sender: str, error: Exception | None) -> ValueError:
    """Return the error of all ranks where somebody's object could not be sent."""
    reason = "" if error is None else f": {error}"
    return ValueError(
        f"{sender} could not send its object{reason}. Send plain data (numbers, texts,"
        " containers, arrays, tensors), or say allow_pickle=True at the call on all ranks:"
        " reading a pickle runs code that its sender chose"
    )


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool | None = None,
) -> Any:
    """The root's object, on every rank; collective.

    Args:
        obj: plain data, or any picklable object where that is allowed; looked at on the root only.
        root_rank: global rank that gives it, also within a process set.
        session: of a TF1 graph; the default one where None.
        name: of the call; needed only where several threads broadcast at the same time.
        process_set: the ranks that take part.
        allow_pickle: whether any object is taken, by code that the root chooses; where None, the
            option of the world (KADRIL_ALLOW_PICKLE, off by default).

    Raises:
        ValueError: on every rank, where the object cannot be pickled, or is not plain data and
            pickle is not allowed.
    """
    mover = ObjectMover(session, name or "broadcast_object", process_set, allow_pickle)
    return mover.broadcast(obj, root_rank)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool | None = None,
) -> Callable[[Any], Any]:
    """A function that broadcasts objects, and makes nodes of a TF1 graph only once."""
    mover = ObjectMover(session, name or "broadcast_object_fn", process_set, allow_pickle)
    return lambda obj: mover.broadcast(obj, root_rank)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool | None = None,
) -> list[Any]:
    """The objects of all ranks, in rank order, on every rank; collective."""
    mover = ObjectMover(session, name or "allgather_object", process_set, allow_pickle)
    return mover.allgather(obj)
