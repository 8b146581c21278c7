"""`DistributedOptimizer` of Keras 3 on torch; what all backends share is in `shared_keras`.

    g_v = 1/n sum_r g_v,r             of each variable v, on every rank
    g_v = g_v,r / n                   of a variable that is registered as local to its rank

`model.fit`, `apply_gradients` and loops of the user's own go through `apply`. Its ways around it
(`stateless_apply`, a step compiled as a whole) raise, so that no gradient is left as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import kadril.torch as hvd
from kadril.needs_torch import torch
from kadril.shared_engine.context import numbered
from kadril.shared_keras import distributed_apply
from kadril.shared_keras.accumulation import GradientAccumulator

__all__ = ["ReductionOptions", "distribute"]

CANNOT_COMPILE = (
    "a step with a distributed optimizer is not compiled as a whole; use model.compile(...,"
    " jit_compile=False)"
)


@dataclasses.dataclass(frozen=True)
class ReductionOptions:
    """Settings of the reduction; see `DistributedOptimizer`."""

    compression: Any = hvd.Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = hvd.Average
    process_set: hvd.ProcessSet = hvd.global_process_set
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        if self.gradient_predivide_factor != 1.0 and self.op != hvd.Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")


class GradientReducer:
    """Reduces lists of gradients, each time of the same variables, under the variables' numbers.

    Args:
        name: of the optimizer; a second one of that name gets a number.
        options: of the reduction.
    """

    def __init__(self, name: str, options: ReductionOptions) -> None:
        self.name = numbered(name)
        self.options = options
        self.local: dict[int, Any] = {}  # by id, and kept alive with it

    def register_local(self, variable: Any) -> None:
        """Leave the gradient of a variable to this rank."""
        self.local[id(variable)] = variable

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks; None stays None. All are on their way together.

        Raises:
            ValueError: as many variables as gradients were not given, or a sparse gradient.
        """
        if len(grads) != len(variables):
            raise ValueError(f"{len(grads)} gradients of {len(variables)} variables")
        results = list(grads)
        if not self.options.process_set.included():
            return results
        waits: dict[int, Callable[[], Any]] = {}
        for index, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if grad is None:
                continue
            if id(variable) in self.local:
                scale = self.options.scale_local_gradients
                results[index] = grad / (self.options.process_set.size() or 1) if scale else grad
            else:
                waits[index] = self._begin(index, self._dense(grad, variable))
        for index, wait in waits.items():
            results[index] = wait()
        return results

    def _dense(self, grad: Any, variable: Any) -> Any:
        if not grad.is_sparse:
            return grad
        if not self.options.sparse_as_dense:
            raise ValueError(
                f"the gradient of {variable.path} is sparse: pass sparse_as_dense=True"
            )
        return grad.to_dense()

    def _begin(self, index: int, grad: Any) -> Callable[[], Any]:
        factor = self.options.gradient_predivide_factor
        compressed, context = self.options.compression.compress(grad.detach())
        handle = hvd.allreduce_async(
            compressed,
            name=f"{self.name}.grad_{index}",
            op=self.options.op,
            prescale_factor=1.0 / factor,
            postscale_factor=factor,
            process_set=self.options.process_set,
        )
        return lambda: self.options.compression.decompress(hvd.synchronize(handle), context)


class TensorAccumulator(GradientAccumulator):
    """The sums of gradients of the passes so far, as tensors.

    Args:
        num_passes: number of passes that make a step.
        is_mean: whether sums are divided by that.
    """

    def __init__(self, num_passes: int, is_mean: bool) -> None:
        super().__init__(num_passes, is_mean)
        self.count = 0
        self.sums: list[Any] = []

    def run(
        self, grads: Sequence[Any], variables: Sequence[Any], step: Callable[[list[Any]], Any]
    ) -> None:
        """Add gradients, and call `step` with their sums at every k-th call.

        Raises:
            RuntimeError: inside a compiled step.
        """
        if torch.compiler.is_compiling():
            raise RuntimeError(CANNOT_COMPILE)
        super().run(grads, variables, step)

    def _add(
        self, grads: Sequence[Any], variables: Sequence[Any], step: Callable[[list[Any]], Any]
    ) -> None:
        del variables
        before = self.sums or [None] * len(grads)
        self.sums = [
            total if grad is None else grad.detach().clone() if total is None else total + grad
            for total, grad in zip(before, grads, strict=True)
        ]
        self.count += 1
        if self.count < self.num_passes:
            return
        sums, self.sums, self.count = self.sums, [], 0
        if self.is_mean:
            sums = [None if total is None else total / self.num_passes for total in sums]
        step(sums)

    def restart(self) -> None:
        """Forget the passes since the last step."""
        self.count, self.sums = 0, []


def distribute(
    keras: Any,
    optimizer: Any,
    name: str | None,
    options: ReductionOptions,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
) -> Any:
    """A distributed optimizer with the configuration and the variables of this one.

    Raises:
        ValueError: it is distributed already.
    """
    return distributed_apply.distribute(
        keras,
        optimizer,
        GradientReducer(name or f"Distributed{type(optimizer).__name__}", options),
        TensorAccumulator(backward_passes_per_step, average_aggregated_gradients),
        CANNOT_COMPILE,
    )
