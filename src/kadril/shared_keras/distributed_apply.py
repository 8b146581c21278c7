"""Optimizers of Keras that step with the gradients of all ranks: what all backends have in common.

    user's optimizer                 one of ours
    Adam                             Adam(DistributedApply, Adam)
      apply(grads)                     apply(grads)
                                         accumulator: once in as many passes as make a step
                                         reducer: the gradients of all ranks
                                         Adam.apply(reduced)

The class keeps its name and its module, so that a saved model says "Adam", and loads where there
is no kadril. A backend has a `Reducer` and a `GradientAccumulator` of its own.

A `LossScaleOptimizer` looks at its own rank's gradients, and skips a step where they are not
finite: if it stood outside, ranks would part ways. So where it wraps one of these, gradients are
reduced before it looks at them, and the inner `apply` lets them pass.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from kadril.shared_keras.accumulation import GradientAccumulator

__all__ = [
    "DistributedApply",
    "DistributedParts",
    "Reducer",
    "distribute",
    "distributed_part",
    "restart_passes",
    "subclass",
]


class Reducer(Protocol):
    """Reduces lists of gradients, each time of the same variables."""

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks; None stays None."""

    def register_local(self, variable: Any) -> None:
        """Leave the gradient of a variable to this rank."""


class DistributedParts:
    """Mixin of distributed optimizers of every Keras: what they reduce with."""

    _kadril_reducer: Reducer
    _kadril_accumulator: GradientAccumulator
    _kadril_is_passing = False

    @contextlib.contextmanager
    def kadril_passing(self) -> Iterator[None]:
        """Let gradients pass, which were reduced further out."""
        before, self._kadril_is_passing = self._kadril_is_passing, True
        try:
            yield
        finally:
            self._kadril_is_passing = before

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable to this rank."""
        self._kadril_reducer.register_local(var)


class DistributedApply(DistributedParts):
    """Mixin of distributed optimizers of Keras 3: `apply` with the gradients of all ranks."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce gradients over all ranks, and step."""
        step = functools.partial(self._kadril_apply, trainable_variables=trainable_variables)
        if self._kadril_is_passing:
            step(grads)
        else:
            self.kadril_step(grads, trainable_variables, step)

    def _kadril_apply(self, grads: Sequence[Any], trainable_variables: Any) -> None:
        super().apply(grads, trainable_variables)  # type: ignore[misc]

    def kadril_step(
        self, grads: Sequence[Any], trainable_variables: Any, step: Callable[[list[Any]], None]
    ) -> None:
        """Call `step` with the gradients of all ranks, after as many passes as make one."""
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables  # type: ignore[attr-defined]

        def reduce_and_step(sums: list[Any]) -> None:
            step(self._kadril_reducer.reduce(sums, list(variables)))

        self._kadril_accumulator.run(grads, variables, reduce_and_step)

    def stateless_apply(self, *arguments: Any, **keywords: Any) -> Any:
        """Raise: it would step with the gradients of this rank.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a distributed optimizer has no stateless_apply; use apply")


def distributed_part(optimizer: Any) -> Any:
    """The optimizer itself, or the one inside it, that is distributed; None without one."""
    while optimizer is not None:
        if isinstance(optimizer, DistributedParts):
            return optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return None


def restart_passes(optimizer: Any) -> None:
    """Count the passes of a distributed optimizer anew: ranks that met again have to count alike.

    One that comes new has made none, and a state does not have those of the others.
    """
    part = distributed_part(optimizer)
    if part is not None:
        part._kadril_accumulator.restart()


def subclass(
    optimizer: Any,
    mixin: type[DistributedParts],
    reducer: Reducer,
    accumulator: GradientAccumulator,
) -> Any:
    """An optimizer of a distributed class, with the configuration of this one and a new state.

    Raises:
        ValueError: it is distributed already.
    """
    base = type(optimizer)
    if distributed_part(optimizer) is not None:
        raise ValueError(f"{base.__name__} is distributed already")
    described = {"__module__": base.__module__, "__doc__": base.__doc__}
    made_class: Any = type(base.__name__, (mixin, base), described)
    made = made_class.from_config(optimizer.get_config())
    made._kadril_reducer = reducer
    made._kadril_accumulator = accumulator
    return made


def distribute(
    keras: Any, optimizer: Any, reducer: Reducer, accumulator: GradientAccumulator, cannot_jit: str
) -> Any:
    """A distributed optimizer of Keras 3 with the configuration and the variables of this one.

    Raises:
        ValueError: it is distributed already.
    """
    patch_keras(keras, cannot_jit)
    made = subclass(optimizer, DistributedApply, reducer, accumulator)
    if optimizer.built:
        if optimizer._trainable_variables:
            made.build(optimizer._trainable_variables)
        else:
            warnings.warn(
                f"{type(optimizer).__name__} has stepped, and has no state of any variable: so"
                " Keras 3 loads the optimizer of an .h5 file. Its steps are counted on, and its"
                " state begins anew; a .keras file keeps it",
                stacklevel=2,
            )
        for mine, theirs in zip(made.variables, optimizer.variables, strict=True):
            mine.assign(theirs)
    return made


@functools.cache
def patch_keras(keras: Any, cannot_jit: str) -> None:
    """Teach Keras 3 about distributed optimizers inside others, and what it cannot compile; once.

    Args:
        keras: the module.
        cannot_jit: the text of the ValueError where a model with one is to be compiled as a whole.
    """
    patch_scaling(keras.optimizers.LossScaleOptimizer)
    # Where it is defined: Keras tells a class with a `compile` of its own apart when it loads one.
    trainer: Any = next(each for each in keras.Model.__mro__ if "compile" in vars(each))
    compile_model = trainer.compile

    @functools.wraps(compile_model)
    def compile_(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = compile_model(self, *args, **kwargs)
        if distributed_part(getattr(self, "optimizer", None)) is not None and self.jit_compile:
            if kwargs.get("jit_compile", "auto") is True:
                raise ValueError(cannot_jit)
            self.jit_compile = False
        return result

    trainer.compile = compile_


def patch_scaling(scaling: Any) -> None:
    """Reduce gradients before a LossScaleOptimizer looks at them, where it wraps one of ours."""
    apply_scaled = scaling.apply

    @functools.wraps(apply_scaled)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        inner = distributed_part(self.inner_optimizer)
        if inner is None or inner._kadril_is_passing or isinstance(self, DistributedApply):
            apply_scaled(self, grads, trainable_variables)
            return

        def step(reduced: Any) -> None:
            with inner.kadril_passing():
                apply_scaled(self, reduced, trainable_variables)

        variables = trainable_variables
        if variables is None:
            variables = getattr(self, "_trainable_variables", None)
        inner.kadril_step(grads, variables, step)

    scaling.apply = apply
