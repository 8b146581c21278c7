"""Reduction of the gradients of a step, by optimizers and tapes of every kind alike.

In a graph each gradient is an op of its own, so that it is on its way while others are computed; in
eager mode, where ops wait, all gradients are one request. Names are explicit, so that they do not
depend on scopes, inlining or tracing.

    g_v = 1/n sum_r g_v,r             of each variable v, on every rank
    g_v = g_v,r / n                   of a variable that is registered as local to its rank
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import warnings
from collections.abc import Sequence
from typing import Any

from kadril.shared_engine.context import numbered
from kadril.tensorflow.basics import Average, ProcessSet, global_process_set
from kadril.tensorflow.compression import Compression
from kadril.tensorflow.framework import tf
from kadril.tensorflow.ops import allreduce, grouped_allreduce

__all__ = ["GradientReducer", "ReductionOptions", "choose_groups", "key_of"]


@dataclasses.dataclass(frozen=True)
class ReductionOptions:
    """Options of the reduction, which `DistributedOptimizer` and the tapes describe."""

    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: int = Average
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if self.groups is not None and not (isinstance(self.groups, list) or self.groups > 0):
            raise ValueError(
                "groups should be a non-negative integer or a list of list of tf.Variable."
            )

    @property
    def scales(self) -> tuple[float, float]:
        """Factors before and after the sum; the mean's own is the engine's."""
        factor = self.gradient_predivide_factor
        return (1.0 / factor, factor) if self.op == Average else (1.0, 1.0)


def choose_groups(num_groups: int, groups: Any) -> Any:
    """The groups that were asked for, by `groups` or by the older `num_groups`."""
    if num_groups == 0:
        return groups
    warnings.warn(
        "Parameter `num_groups` has been replaced by `groups`", DeprecationWarning, stacklevel=3
    )
    return num_groups if groups is None else groups


def key_of(variable: Any) -> int:
    """Return the key of a variable: one of Keras 3 and TensorFlow's inside it have the same."""
    inner = getattr(variable, "value", None)
    return id(inner if isinstance(inner, tf.Variable) else variable)


class GradientReducer:
    """Reduces lists of gradients, each time of the same variables.

    Args:
        name: of the optimizer or tape; a second one of that name gets a number.
        options: of the reduction.
        is_shared: whether a second one of that name keeps it.
    """

    def __init__(self, name: str, options: ReductionOptions, is_shared: bool = False) -> None:
        self.name = name if is_shared else numbered(name)
        self.options = options
        self._local: dict[int, Any] = {}  # by key, and kept alive with it

    def register_local(self, variable: Any) -> None:
        """Leave the gradient of a variable to this rank."""
        self._local[key_of(variable)] = variable

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to reduce with."""
        process_set = self.options.process_set
        if not process_set.included():
            return True
        # The number of ranks may change while the graph stays.
        return process_set.size() == 1 and not int(os.environ.get("HOROVOD_ELASTIC", "0"))

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks; None stays None.

        Raises:
            ValueError: as many variables as gradients were not given.
        """
        grads, variables = list(grads), list(variables)
        if len(grads) != len(variables):
            raise ValueError(f"{len(grads)} gradients of {len(variables)} variables")
        results = list(grads)
        shared = []
        for index, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if grad is None:
                continue
            if key_of(variable) in self._local:
                results[index] = self._scale_local(grad)
            else:
                shared.append(index)
        if self.is_alone or not shared:
            return results
        if self.options.sparse_as_dense:
            for index in shared:
                results[index] = tf.convert_to_tensor(results[index])
        # Of variables of one shape, a rank without the gradient of the one would else be averaged
        # with a rank without that of the other.
        missing = "".join(f"_{index}" for index, grad in enumerate(grads) if grad is None)
        for number, group in enumerate(self._group(shared, variables)):
            label = f"{number}_without{missing}" if missing else str(number)
            for index, reduced in zip(
                group, self._reduce_group(results, group, label), strict=True
            ):
                results[index] = reduced
        return results

    def _scale_local(self, grad: Any) -> Any:
        size = self.options.process_set.size() or 1
        if not self.options.scale_local_gradients:
            return grad
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(grad.values / size, grad.indices, grad.dense_shape)
        return grad / tf.cast(size, grad.dtype)

    def _group(self, shared: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """Return the groups of gradients that go together, by index."""
        groups = self.options.groups
        if groups is None:
            return [shared] if tf.executing_eagerly() else [[index] for index in shared]
        if isinstance(groups, int):
            count = min(groups, len(shared))
            bounds = [len(shared) * part // count for part in range(count + 1)]
            return [shared[a:b] for a, b in itertools.pairwise(bounds)]
        by_key = {key_of(variables[index]): index for index in shared}
        grouped = [
            [by_key.pop(key_of(each)) for each in group if key_of(each) in by_key]
            for group in groups
        ]
        return [*filter(None, grouped), *([index] for index in by_key.values())]

    def _reduce_group(self, grads: Sequence[Any], group: list[int], label: str) -> list[Any]:
        prescale, postscale = self.options.scales
        given = [grads[index] for index in group]
        has_slices = any(isinstance(grad, tf.IndexedSlices) for grad in given)
        common: dict[str, Any] = {
            "device_dense": self.options.device_dense,
            "device_sparse": self.options.device_sparse,
            "compression": self.options.compression,
            "op": self.options.op,
            "process_set": self.options.process_set,
        }
        if not has_slices:  # of which there is only a mean, and in a mean the factors cancel out
            common |= {"prescale_factor": prescale, "postscale_factor": postscale}
        if len(group) == 1:
            name = f"{self.name}.grad_{group[0]}"
            return [allreduce(given[0], name=name, **common)]
        name = f"{self.name}.group_{label}"
        return list(grouped_allreduce(given, name=name, **common))
