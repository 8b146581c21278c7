"""The same start on all ranks: variables are broadcast from a root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kadril.tensorflow.basics import ProcessSet, global_process_set
from kadril.tensorflow.framework import tf
from kadril.tensorflow.ops import broadcast, broadcast_, is_keras_3

__all__ = ["BroadcastGlobalVariablesHook", "broadcast_global_variables", "broadcast_variables"]


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assign the root's values to variables of TensorFlow or of Keras 3, on every rank.

    Args:
        variables: in the same order on all ranks.
        root_rank: global rank that gives the values, also within a process set.
        process_set: the ranks that take part.
        inplace: whether all of them are one request.

    Returns:
        In a TF1 graph, the op that does it.

    Raises:
        tf.errors.FailedPreconditionError: ranks gave variables of different shapes or dtypes.
    """
    held = [variable.value if is_keras_3(variable) else variable for variable in variables]
    if inplace or tf.executing_eagerly():
        assigned = broadcast_(held, root_rank, process_set=process_set)
        return None if tf.executing_eagerly() else grouped(assigned)
    assigned = []
    for index, variable in enumerate(held):
        name = f"broadcast_variables.{index}.{variable.name}"
        value = broadcast(variable, root_rank, name=name, process_set=process_set)
        assigned.append(variable.assign(value))
    return grouped(assigned)


def grouped(ops: Sequence[Any]) -> Any:
    """One op for all."""
    return tf.group(*[getattr(each, "op", each) for each in ops])


def broadcast_global_variables(root_rank: int) -> Any:
    """The op that assigns the root's values to all global variables of a TF1 graph.

    Raises:
        RuntimeError: in eager mode, which knows no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use"
            " `hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcasts all global variables from a root when a session starts, new or restored.

    Args:
        root_rank: that gives the values.
        device: where the ops are placed.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None
        self.device = device

    def begin(self) -> None:
        """Make the op, in the graph of the session."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph != graph:
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        del coord
        session.run(self.bcast_op)
