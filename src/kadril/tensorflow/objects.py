"""Any picklable object, from one rank to all or from all to all.

Objects travel as pickle, which runs code when it is read. The bytes come from the ranks of this job
only, which proved at rendezvous that they know its secret.

In eager mode objects are given at once; in a TF1 graph they need a session (`session=`, or the
default one), in which the bytes are fed.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from kadril.tensorflow.basics import ProcessSet, global_process_set, rank
from kadril.tensorflow.framework import tf
from kadril.tensorflow.ops import allgather, broadcast

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn"]


def dumps(obj: Any) -> bytes:
    """Pickle; with cloudpickle, which knows lambdas and classes of notebooks, where it is there."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    data: bytes = cloudpickle.dumps(obj)
    return data


def loads(data: bytes) -> Any:
    """The object of these bytes, which came from ranks of this job."""
    return pickle.load(io.BytesIO(data))  # noqa: S301 - see the top


class ObjectMover:
    """Moves arrays of bytes: by eager ops, or by nodes of a graph that are made once."""

    def __init__(self, session: Any, name: str, process_set: ProcessSet) -> None:
        self.name = name
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

    def broadcast(self, obj: Any, root_rank: int) -> Any:
        """The root's object."""
        is_root = rank() == root_rank
        data = np.frombuffer(dumps(obj), np.uint8) if is_root else np.zeros(0, np.uint8)

        def operate(tensor: Any, name: str) -> Any:
            return broadcast(tensor, root_rank, name=name, process_set=self.process_set)

        (length,) = self.run("size", np.array([data.size], np.int64), operate)
        received = data if is_root else np.zeros(int(length), np.uint8)
        received = self.run("data", received, operate)
        return obj if is_root else loads(received.tobytes())

    def allgather(self, obj: Any) -> list[Any]:
        """The objects of all ranks."""
        data = np.frombuffer(dumps(obj), np.uint8)

        def operate(tensor: Any, name: str) -> Any:
            return allgather(tensor, name=name, process_set=self.process_set)

        lengths = self.run("sizes", np.array([data.size], np.int64), operate)
        received = self.run("data", data, operate)
        ends = np.cumsum(lengths)
        return [
            loads(received[end - length : end].tobytes())
            for end, length in zip(ends, lengths, strict=True)
        ]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object, on every rank; collective.

    Args:
        obj: any picklable object; looked at on the root only.
        root_rank: global rank that gives it, also within a process set.
        session: of a TF1 graph; the default one where None.
        name: of the call; needed only where several threads broadcast at the same time.
        process_set: the ranks that take part.
    """
    mover = ObjectMover(session, name or "broadcast_object", process_set)
    return mover.broadcast(obj, root_rank)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that broadcasts objects, and makes nodes of a TF1 graph only once."""
    mover = ObjectMover(session, name or "broadcast_object_fn", process_set)
    return lambda obj: mover.broadcast(obj, root_rank)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """The objects of all ranks, in rank order, on every rank; collective."""
    mover = ObjectMover(session, name or "allgather_object", process_set)
    return mover.allgather(obj)
