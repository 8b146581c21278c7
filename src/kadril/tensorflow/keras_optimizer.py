"""`DistributedOptimizer` of Keras 3 on TensorFlow; what it does is in `shared_keras`.

Everything that steps a Keras 3 optimizer goes through `apply`: `model.fit`, `apply_gradients` and
loops of the user's own; before clipping, unscaling and accumulation.
"""

from __future__ import annotations

import sys
from typing import Any

from kadril.shared_keras import distributed_apply
from kadril.tensorflow.accumulation import VariableAccumulator
from kadril.tensorflow.gradient_reduction import GradientReducer, ReductionOptions

__all__ = ["distribute", "is_keras_optimizer"]

CANNOT_JIT = (
    "a distributed optimizer cannot be compiled by XLA, which knows no collectives; use"
    " model.compile(..., jit_compile=False)"
)


def is_keras_optimizer(optimizer: Any) -> bool:
    """Whether it is one of Keras 3, which is not loaded for the question."""
    keras: Any = sys.modules.get("keras")
    return keras is not None and isinstance(optimizer, keras.optimizers.Optimizer)


def distribute(
    optimizer: Any,
    name: str | None,
    options: ReductionOptions,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
) -> Any:
    """A distributed optimizer with the configuration and the variables of this one."""
    return distributed_apply.distribute(
        sys.modules["keras"],
        optimizer,
        GradientReducer(name or f"Distributed{type(optimizer).__name__}", options),
        VariableAccumulator(backward_passes_per_step, average_aggregated_gradients),
        CANNOT_JIT,
    )
