"""Sums of gradients of several backward passes in variables, so that graphs add them up as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kadril.shared_keras.accumulation import GradientAccumulator
from kadril.tensorflow.framework import tf

__all__ = ["VariableAccumulator"]


class VariableAccumulator(GradientAccumulator):
    """The sums of gradients of the passes so far, in variables of its own.

    Args:
        num_passes: number of passes that make a step.
        is_mean: whether sums are divided by that.
    """

    def __init__(self, num_passes: int, is_mean: bool) -> None:
        super().__init__(num_passes, is_mean)
        self._count: Any = None
        self._sums: list[Any] = []

    def _add(
        self, grads: Sequence[Any], variables: Sequence[Any], step: Callable[[list[Any]], Any]
    ) -> None:
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

    def restart(self) -> None:
        """Forget the passes since the last step."""
        if self._count is not None:
            self._count.assign(0)
            for total in self._sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))

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
