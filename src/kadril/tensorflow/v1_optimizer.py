"""`DistributedOptimizer` of `tf.compat.v1.train`: gradients are reduced in `compute_gradients`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kadril.tensorflow.basics import Adasum
from kadril.tensorflow.framework import tf
from kadril.tensorflow.gradient_reduction import GradientReducer, ReductionOptions
from kadril.tensorflow.ops import allreduce

__all__ = ["DistributedAdasumOptimizer", "DistributedV1Optimizer"]


class DistributedV1Optimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Wraps another optimizer of TF1.

    With `backward_passes_per_step` above 1 gradients are added up in variables, in TF1 graphs only.
    Those are local variables: run `tf.compat.v1.local_variables_initializer()`, as monitored
    sessions do by themselves.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        options: ReductionOptions,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
    ) -> None:
        name = name or f"Distributed{type(optimizer).__name__}"
        super().__init__(name=name, use_locking=use_locking)
        if backward_passes_per_step < 1:
            raise ValueError(
                f"backward_passes_per_step must be at least 1, got {backward_passes_per_step}"
            )
        if backward_passes_per_step > 1 and tf.executing_eagerly():
            raise ValueError(
                "backward_passes_per_step > 1 is not supported for optimizers of TF1 in eager mode"
            )
        self._optimizer = optimizer
        self._reducer = GradientReducer(name, options)
        self._num_passes = backward_passes_per_step
        self._is_mean = average_aggregated_gradients
        self._count: Any = None
        self._sums: list[Any] = []

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable to this rank."""
        self._reducer.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The gradients of all ranks: those of the wrapped optimizer, reduced.

        Within a cycle of several passes they are zeros until the last one.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        if self._num_passes == 1:
            reduced = self._reducer.reduce(grads, variables)
        else:
            reduced = self._accumulate(grads, variables)
        return list(zip(reduced, variables, strict=True))

    def _accumulate(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        self._count = local_variable("passes", tf.zeros([], tf.int64))
        self._sums = [
            None if grad is None else local_variable("sum", tf.zeros(variable.shape, grad.dtype))
            for grad, variable in zip(grads, variables, strict=True)
        ]
        present = [index for index, grad in enumerate(grads) if grad is not None]
        added = [
            self._sums[index].assign_add(tf.convert_to_tensor(grads[index])) for index in present
        ]
        with tf.control_dependencies(added):
            count = self._count.assign_add(1)

        def finish() -> list[Any]:
            divisor = self._num_passes if self._is_mean else 1
            sums = [self._sums[index].read_value() for index in present]
            means = [each / tf.cast(divisor, each.dtype) for each in sums]
            return self._reducer.reduce(means, [variables[index] for index in present])

        def wait() -> list[Any]:
            return [tf.zeros(self._sums[index].shape, self._sums[index].dtype) for index in present]

        self._is_last = tf.equal(count, self._num_passes)
        found = tf.cond(self._is_last, finish, wait)
        results: list[Any] = [None] * len(grads)
        for index, each in zip(present, found if isinstance(found, list) else [found], strict=True):
            results[index] = each
        return results

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Step the wrapped optimizer; within a cycle of several passes, only at its end."""
        pairs = list(grads_and_vars)
        if self._num_passes == 1:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        def step() -> Any:
            done = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
            with tf.control_dependencies([done]):
                cleared = [
                    total.assign(tf.zeros_like(total))
                    for total in [*self._sums, self._count]
                    if total is not None
                ]
            with tf.control_dependencies(cleared):
                return tf.no_op()

        def wait() -> Any:
            # Every pass counts as a step of the session.
            return tf.no_op() if global_step is None else tf.group(global_step.assign_add(1))

        with tf.control_dependencies([grad for grad, _ in pairs if grad is not None]):
            return tf.cond(self._is_last, step, wait)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return that of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return those of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return those of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def local_variable(name: str, value: Any) -> Any:
    """A variable that is neither saved nor broadcast."""
    return tf.compat.v1.Variable(
        value,
        name=f"kadril_{name}",
        trainable=False,
        use_resource=True,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )


class DistributedAdasumOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Steps on each rank, and combines by Adasum how far the variables have come.

    x = x_0 + Adasum_r(x_r - x_0)             after each k-th step, with x_0 the last such x
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        options: ReductionOptions,
        backward_passes_per_step: int = 1,
    ) -> None:
        name = name or f"DistributedDelta{type(optimizer).__name__}"
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._options = options
        self._num_passes = backward_passes_per_step

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Return those of the wrapped optimizer, of this rank."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Step, and combine the way of all ranks.

        Raises:
            ValueError: in eager mode.
        """
        if tf.executing_eagerly():
            raise ValueError("op=Adasum for optimizers of TF1 works in TF1 graphs only")
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        variables = [variable for _, variable in pairs]
        count = local_variable("passes", tf.zeros([], tf.int64))
        starts = [
            local_variable("start", tf.zeros(variable.shape, variable.dtype.base_dtype))
            for variable in variables
        ]
        number = count.assign_add(1)
        with tf.control_dependencies([number]):
            remembered = tf.cond(
                tf.equal(number % self._num_passes, 1 % self._num_passes),
                lambda: group_all(
                    [
                        start.assign(tf.convert_to_tensor(variable))
                        for start, variable in zip(starts, variables, strict=True)
                    ]
                ),
                tf.no_op,
            )
        with tf.control_dependencies([remembered]):
            waited = [(tf.identity(grad), variable) for grad, variable in dense(pairs)]
            done = self._optimizer.apply_gradients(waited, global_step=global_step)
        with tf.control_dependencies([done]):
            return tf.cond(
                tf.equal(number % self._num_passes, 0),
                lambda: self._combine(starts, variables),
                tf.no_op,
                name=name,
            )

    def _combine(self, starts: Sequence[Any], variables: Sequence[Any]) -> Any:
        combined = []
        for index, (start, variable) in enumerate(zip(starts, variables, strict=True)):
            way = allreduce(
                tf.convert_to_tensor(variable) - start,
                device_dense=self._options.device_dense,
                compression=self._options.compression,
                op=Adasum,
                name=f"{self._name}.delta_{index}",
                ignore_name_scope=True,
            )
            combined.append(variable.assign(start + way))
        return group_all(combined)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return that of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return those of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return those of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def dense(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Gradients as tensors."""
    return [(tf.convert_to_tensor(grad), variable) for grad, variable in pairs]


def group_all(ops: Sequence[Any]) -> Any:
    """An op that is done when all of these are."""
    with tf.control_dependencies(list(ops)):
        return tf.no_op()
