"""The family of `tf.keras`: optimizers, variables and numpy-valued ops of TensorFlow."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kadril.shared_keras.distributed_apply import distributed_part
from kadril.shared_keras.family import KerasFamily
from kadril.tensorflow import ops
from kadril.tensorflow.basics import ProcessSet
from kadril.tensorflow.compression import Compression
from kadril.tensorflow.distributed_optimizer import DistributedOptimizer
from kadril.tensorflow.framework import tf
from kadril.tensorflow.objects import allgather_object
from kadril.tensorflow.variables import broadcast_global_variables, broadcast_variables

__all__ = ["FAMILY", "TensorFlowFamily"]


class TensorFlowFamily(KerasFamily):
    """Keras 3 on TensorFlow, or tf_keras."""

    def distribute(self, optimizer: Any, **options: Any) -> Any:
        """See `kadril.tensorflow.DistributedOptimizer`."""
        return DistributedOptimizer(optimizer, **options)

    def register_layers(self) -> None:
        """Load `SyncBatchNormalization`, which registers itself."""
        importlib.import_module("kadril.tensorflow.sync_batch_norm")

    def is_distributed(self, optimizer: Any) -> bool:
        """Whether it steps with the gradients of all ranks, or one inside it does."""
        return distributed_part(optimizer) is not None

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int, device: str) -> None:
        """Assign the root's values to variables, on every rank.

        Raises:
            RuntimeError: in a TF1 graph.
        """
        if not tf.executing_eagerly():
            raise RuntimeError(
                "callbacks need eager execution; for a TF1 graph there is"
                " kadril.tensorflow.BroadcastGlobalVariablesHook"
            )
        with tf.device(device):
            broadcast_variables(variables, root_rank)

    def allgather_object(self, obj: Any, process_set: ProcessSet) -> list[Any]:
        """The objects of all ranks."""
        return allgather_object(obj, process_set=process_set)

    def run(self, kind: str, value: Any, **options: Any) -> Any:
        """Do a collective eagerly, or in the default session of a TF1 graph."""
        return evaluated(lambda: getattr(ops, kind)(tf.convert_to_tensor(value), **options))

    def broadcast_global_variables(self, root_rank: int) -> None:
        """Broadcast all variables of a TF1 graph, in its default session.

        Raises:
            RuntimeError: in eager mode, where there are no global variables, or without a session.
        """
        evaluated(lambda: broadcast_global_variables(root_rank))


def evaluated(make: Callable[[], Any]) -> Any:
    """The array that an op gives."""
    made = make()
    if tf.executing_eagerly():
        return np.asarray(made)
    session = tf.compat.v1.get_default_session()
    if session is None:
        raise RuntimeError("in a TF1 graph this needs a default session: with session: ...")
    return session.run(made)


def keras_of_tensorflow() -> Any:
    """The module behind `tf.keras`."""
    package = str(tf.keras.Model.__module__).split(".")[0]  # keras, or tf_keras
    return importlib.import_module(package)


FAMILY = TensorFlowFamily(keras_of_tensorflow(), Compression)
