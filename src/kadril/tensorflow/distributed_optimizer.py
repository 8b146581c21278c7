"""`DistributedOptimizer` for every optimizer that TensorFlow knows: Keras 3, tf_keras, TF1."""

from __future__ import annotations

from typing import Any

from kadril.tensorflow import keras_optimizer, tf_keras_optimizer
from kadril.tensorflow.basics import Adasum, Average, ProcessSet, global_process_set
from kadril.tensorflow.compression import Compression
from kadril.tensorflow.framework import tf
from kadril.tensorflow.gradient_reduction import ReductionOptions, choose_groups
from kadril.tensorflow.v1_optimizer import DistributedAdasumOptimizer, DistributedV1Optimizer

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802 - a function that scripts take for a class
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer like this one that steps with the gradients of all ranks.

    Args:
        optimizer: of Keras 3, tf_keras or `tf.compat.v1.train`.
        name: of its operations; by default that of the class after "Distributed".
        use_locking: of an optimizer of TF1.
        device_dense: where ops of dense gradients are placed.
        device_sparse: where those of `tf.IndexedSlices` are.
        compression: e.g. `Compression.fp16`: gradients travel in another dtype.
        sparse_as_dense: whether slices are made tensors first.
        backward_passes_per_step: how many gradients are added up before one step.
        op: Average (default), Sum, or for TF1 Adasum of how far each rank's step has come.
        gradient_predivide_factor: of an average: divided by before the sum, multiplied with after.
        average_aggregated_gradients: whether the sum of the passes is divided by their number.
        num_groups: deprecated, use `groups`.
        groups: how many groups of gradients are reduced as one request, or lists of variables.
        process_set: the ranks that take part; others step by themselves.
        scale_local_gradients: whether gradients of local variables are divided by the ranks.

    Raises:
        ValueError: arguments that do not go together, or an optimizer of another kind.
    """
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    options = ReductionOptions(
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=choose_groups(num_groups, groups),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    passes = (backward_passes_per_step, average_aggregated_gradients)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return distribute_v1(optimizer, name, use_locking, options, passes)
    return distribute_keras(optimizer, name, options, passes)


def distribute_v1(
    optimizer: Any,
    name: str | None,
    use_locking: bool,
    options: ReductionOptions,
    passes: tuple[int, bool],
) -> Any:
    """Return the distributed optimizer of one of TF1.

    Args:
        optimizer: see `DistributedOptimizer`.
        name: see `DistributedOptimizer`.
        use_locking: see `DistributedOptimizer`.
        options: options of the reduction.
        passes: how many make a step, and whether their sum is divided by that.

    Raises:
        NotImplementedError: Adasum over a process set.
    """
    if options.op != Adasum:
        return DistributedV1Optimizer(optimizer, name, use_locking, options, *passes)
    if options.process_set.process_set_id != 0:
        raise NotImplementedError("Adasum does not support process sets yet")
    return DistributedAdasumOptimizer(optimizer, name, use_locking, options, passes[0])


def distribute_keras(
    optimizer: Any, name: str | None, options: ReductionOptions, passes: tuple[int, bool]
) -> Any:
    """Return the distributed optimizer of one of Keras 3 or tf_keras; see `distribute_v1`.

    Raises:
        ValueError: Adasum, or an optimizer of another kind.
    """
    for kind in (keras_optimizer, tf_keras_optimizer):
        is_of_kind = getattr(kind, "is_keras_optimizer", None) or kind.is_tf_keras_optimizer
        if is_of_kind(optimizer):
            if options.op == Adasum:
                raise ValueError("op == Adasum is not supported yet with Keras")
            return kind.distribute(optimizer, name, options, *passes)
    raise ValueError(
        f"Provided optimizer doesn't inherit from either legacy TensorFlow or Keras optimizer:"
        f" {optimizer}"
    )


def PartialDistributedOptimizer(  # noqa: N802 - likewise
    optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any
) -> Any:
    """A `DistributedOptimizer` that leaves the gradients of some layers to their rank.

    Args:
        optimizer: see `DistributedOptimizer`.
        args: its further arguments.
        local_layers: a layer, or several; they have to be built.
        kwargs: its further arguments by name.

    Raises:
        ValueError: something that is not a layer.
    """
    made = DistributedOptimizer(optimizer, *args, **kwargs)
    for variable in local_variables(local_layers):
        made.register_local_var(variable)
    return made


def local_variables(local_layers: Any) -> list[Any]:
    """The trainable variables of layers.

    Raises:
        ValueError: something that is not a layer.
    """
    if local_layers is None:
        return []
    layers = [local_layers] if hasattr(local_layers, "trainable_weights") else list(local_layers)
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in layers for variable in layer.trainable_weights]
