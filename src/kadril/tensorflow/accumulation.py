"""Several backward passes for one step: gradients are added up, and reduced once.

    pass 1 ... k-1      a_v += g_v
    pass k              step of a_v + g_v, reduced; a_v = 0

With `average_aggregated_gradients` the sum is divided by k. The optimizer counts steps, not passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kadril.tensorflow.framework import tf

__all__ = ["GradientAccumulator"]


class GradientAccumulator:
    """The sums of gradients of the passes so far, in variables of its own.

    Args:
        num_passes: that make a step.
        is_mean: whether sums are divided by that.

    Raises:
        ValueError: less than one pass.
    """

    def __init__(self, num_passes: int, is_mean: bool) -> None:
        if num_passes < 1:
            raise ValueError(f"backward_passes_per_step must be at least 1, got {num_passes}")
        self.num_passes = num_passes
        self.is_mean = is_mean
        self._count: Any = None
        self._sums: list[Any] = []

    def run(
        self, grads: Sequence[Any], variables: Sequence[Any], step: Callable[[list[Any]], Any]
    ) -> None:
        """Add gradients, and call `step` with their sums at every k-th call."""
        if self.num_passes == 1:
            step(list(grads))
            return
        self._build(grads, variables)
        for total, grad in zip(self._sums, grads, strict=True):
            if grad is not None:
                total.assign_add(tf.convert_to_tensor(grad))
        count = self._count.assign_add(1)

        def finish() -> Any:
            divisor = self.num_passes if self.is_mean else 1
            sums = [
                None if grad is None else total / tf.cast(divisor, total.dtype)
                for total, grad in zip(self._sums, grads, strict=True)
            ]
            step(sums)
            for total in self._sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))
            self._count.assign(0)
            return tf.constant(True)

        tf.cond(tf.equal(count, self.num_passes), finish, lambda: tf.constant(False))

    def _build(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        if self._count is not None:
            return
        with tf.init_scope():
            self._count = tf.Variable(0, trainable=False, name="kadril_passes", dtype=tf.int64)
            for grad, variable in zip(grads, variables, strict=True):
                total = None
                if grad is not None:
                    zeros = tf.zeros(variable.shape, grad.dtype)
                    total = tf.Variable(zeros, trainable=False, name="kadril_sum")
                self._sums.append(total)
