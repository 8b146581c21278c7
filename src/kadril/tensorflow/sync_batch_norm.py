"""Batch normalization over the batches of all ranks, which may differ in size.

    N = sum_r n_r        m = 1/N sum_r sum_i x_ri        v = 1/N sum_r sum_i (x_ri - m)^2

Two all-reduces: of the counts with the sums, and of the squares of what is left. Their gradients
are all-reduces too, so that the layer has those that it has in one process with the whole batch.
"""

from __future__ import annotations

from typing import Any

from kadril.tensorflow.basics import ProcessSet, Sum, global_process_set
from kadril.tensorflow.framework import tf
from kadril.tensorflow.ops import allreduce

__all__ = ["SyncBatchNormalization", "moments_of_all"]


def moments_of_all(
    inputs: Any, axes: Any, process_set: ProcessSet, mask: Any = None, keep_dims: bool = False
) -> tuple[Any, Any]:
    """Mean and variance over axes of the inputs of all ranks; collective.

    Args:
        inputs: of any batch size, 0 included.
        axes: to reduce.
        process_set: the ranks that take part.
        mask: of the inputs' shape without the last dim: what counts.
        keep_dims: whether the reduced dims stay, with size 1.
    """
    weights = tf.ones_like(inputs)
    if mask is not None:
        weights = tf.broadcast_to(tf.cast(mask, inputs.dtype)[..., None], tf.shape(inputs))
    total = tf.reduce_sum(inputs * weights, axes)
    count = tf.reduce_sum(weights, axes)
    both = allreduce(tf.stack([total, count]), op=Sum, process_set=process_set)
    count = tf.maximum(both[1], 1)
    mean = both[0] / count
    kept = [1 if axis in axes else -1 for axis in range(inputs.shape.rank)]
    spread = tf.reshape(mean, kept) if kept.count(-1) == 1 else mean
    squares = tf.reduce_sum(weights * tf.square(inputs - spread), axes)
    variance = allreduce(squares, op=Sum, process_set=process_set) / count
    if keep_dims:
        return tf.reshape(mean, kept), tf.reshape(variance, kept)
    return mean, variance


def make_class() -> type[Any]:
    """The layer, of the Keras that `tf.keras` is."""
    base = tf.keras.layers.BatchNormalization
    is_keras_3 = not hasattr(base, "_calculate_mean_and_var")
    made = keras_3_layer(base) if is_keras_3 else tf_keras_layer(base)
    made.__name__ = made.__qualname__ = "SyncBatchNormalization"
    # Keras imports no module for the sake of a saved model: it looks among what was registered.
    registered: type[Any] = tf.keras.utils.register_keras_serializable(package="kadril")(made)
    return registered


def keras_3_layer(base: Any) -> type[Any]:
    """A subclass of Keras 3's layer."""

    class Layer(base):  # type: ignore[misc]
        """Batch normalization over all ranks; arguments are those of `BatchNormalization`."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._kadril_set = kwargs.pop("process_set", global_process_set)
            kwargs.pop("fused", None)
            super().__init__(*args, **kwargs)

        def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
            return moments_of_all(inputs, self._reduction_axes, self._kadril_set, mask)

    return Layer


def tf_keras_layer(base: Any) -> type[Any]:
    """A subclass of tf_keras' layer."""

    class Layer(base):  # type: ignore[misc]
        """Batch normalization over all ranks; arguments are those of `BatchNormalization`.

        Raises:
            ValueError: `fused=True`.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._kadril_set = kwargs.pop("process_set", global_process_set)
            if kwargs.pop("fused", False):
                raise ValueError("SyncBatchNormalization does not support fused=True.")
            super().__init__(*args, fused=False, **kwargs)

        def _calculate_mean_and_var(
            self, x: Any, axes: Any, keep_dims: bool, mask: Any = None
        ) -> tuple[Any, Any]:
            return moments_of_all(x, axes, self._kadril_set, mask, keep_dims)

    return Layer


SyncBatchNormalization = make_class()
