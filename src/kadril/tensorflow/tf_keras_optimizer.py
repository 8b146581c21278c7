"""`DistributedOptimizer` of tf_keras, that is, Keras 2: a subclass with another `apply_gradients`.

`model.fit`, `minimize` and loops of the user's own all call it, in the optimizers of today and in
the legacy ones. Loss scaling and saving are as for Keras 3, see `shared_keras`. Keras 2 does not
say which variables the state of an optimizer belongs to, so it is taken over when the new one
makes its own.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from kadril.shared_keras.distributed_apply import DistributedParts, subclass
from kadril.shared_keras.optimizer_access import build, variables_of
from kadril.tensorflow.accumulation import VariableAccumulator
from kadril.tensorflow.framework import tf
from kadril.tensorflow.gradient_reduction import GradientReducer, ReductionOptions

__all__ = ["DistributedApplyGradients", "distribute", "is_tf_keras_optimizer"]


def tf_keras() -> Any:
    """The module, where somebody has loaded it."""
    return sys.modules.get("tf_keras")


class DistributedApplyGradients(DistributedParts):
    """Mixin of distributed optimizers: `apply_gradients` with those of all ranks."""

    # The optimizer whose state this one takes over, when it makes its variables.
    _kadril_source: Any = None

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce gradients over all ranks, and step."""
        base = super().apply_gradients  # type: ignore[misc]
        pairs = list(grads_and_vars)
        if self._kadril_is_passing:
            return base(pairs, *args, **kwargs)
        return self.kadril_step(pairs, lambda reduced: base(reduced, *args, **kwargs))

    def kadril_step(self, pairs: list[tuple[Any, Any]], step: Any) -> Any:
        """Call `step` with the gradients of all ranks, after as many passes as make one."""
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        results = []
        if self._kadril_source is not None:
            with tf.init_scope():
                build(self, variables)

        def reduce_and_step(sums: list[Any]) -> None:
            reduced = self._kadril_reducer.reduce(sums, variables)
            results.append(step(list(zip(reduced, variables, strict=True))))

        self._kadril_accumulator.run(grads, variables, reduce_and_step)
        return results[0] if self._kadril_accumulator.num_passes == 1 else None

    def _kadril_take_over(self) -> None:
        source, self._kadril_source = self._kadril_source, None
        if source is not None:
            take_over(source, self)


class OfToday(DistributedApplyGradients):
    """Mixin for the optimizers of Keras 2 that are not legacy."""

    def build(self, var_list: Any) -> None:
        """Make the variables, with the values that the optimizer had which this one was made of."""
        super().build(var_list)  # type: ignore[misc]
        self._kadril_take_over()


class Legacy(DistributedApplyGradients):
    """Mixin for legacy optimizers."""

    def _create_all_weights(self, var_list: Any) -> None:
        super()._create_all_weights(var_list)  # type: ignore[misc]
        self._kadril_take_over()


def take_over(source: Any, target: Any) -> None:
    """Give an optimizer the values of the one that it was made of.

    Raises:
        ValueError: that one has stepped with other variables.
    """
    values, owned = variables_of(source), variables_of(target)
    shapes = [[tuple(each.shape) for each in side] for side in (values, owned)]
    if len(values) > 1 and shapes[0] != shapes[1]:  # one that has not stepped has its counter
        raise ValueError(
            f"{type(target).__name__} was made of an optimizer that has stepped with other"
            f" variables: its state has the shapes {shapes[0]}, and that of these variables"
            f" {shapes[1]}. Make the distributed optimizer of one that has not stepped"
        )
    for variable, value in zip(owned, values, strict=False):
        variable.assign(value)


def optimizer_classes() -> tuple[type[Any], ...]:
    """The two families of tf_keras."""
    module = tf_keras()
    if module is None:
        return ()
    return (module.optimizers.Optimizer, module.optimizers.legacy.Optimizer)


def is_tf_keras_optimizer(optimizer: Any) -> bool:
    """Whether it is one of tf_keras."""
    return isinstance(optimizer, optimizer_classes())


def distribute(
    optimizer: Any,
    name: str | None,
    options: ReductionOptions,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
) -> Any:
    """A distributed optimizer with the configuration and the variables of this one."""
    patch_loss_scale()
    made = subclass(
        optimizer,
        Legacy if hasattr(optimizer, "_create_all_weights") else OfToday,
        GradientReducer(name or f"Distributed{type(optimizer).__name__}", options),
        VariableAccumulator(backward_passes_per_step, average_aggregated_gradients),
    )
    if variables_of(optimizer):
        made._kadril_source = optimizer
        made.iterations.assign(optimizer.iterations)
    return made


@functools.cache
def patch_loss_scale() -> None:
    """Reduce gradients before a LossScaleOptimizer looks at them, where it wraps one of ours."""
    module = tf_keras().src.mixed_precision.loss_scale_optimizer
    for scaling in (module.LossScaleOptimizer, module.LossScaleOptimizerV3):
        patch_scaling(scaling)


def patch_scaling(scaling: Any) -> None:
    """Replace `apply_gradients` of one class."""
    apply_scaled = scaling.apply_gradients

    @functools.wraps(apply_scaled)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        inner = self.inner_optimizer
        if not isinstance(inner, DistributedApplyGradients) or inner._kadril_is_passing:
            return apply_scaled(self, grads_and_vars, *args, **kwargs)

        def step(reduced: Any) -> Any:
            with inner.kadril_passing():
                return apply_scaled(self, reduced, *args, **kwargs)

        return inner.kadril_step(list(grads_and_vars), step)

    scaling.apply_gradients = apply_gradients
