"""Arrays that a collective reads from or writes to: torch tensors and numpy arrays alike."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from kadril.transport.buffer import Array, as_buffer, is_tensor

if TYPE_CHECKING:
    import torch

__all__ = ["AnyArray", "as_source", "as_target", "new_like"]

AnyArray = TypeVar("AnyArray", bound="Array")

EVERYONE = "kadril.partition.world_partition()"

# The operation with a gradient, for each one here. P_root: the partition of the root alone.
DIFFERENTIABLE = {
    "allreduce": f"kadril.ops.all_sum_reduce(x, {EVERYONE}, [0])",
    "allreduce_": f"kadril.ops.all_sum_reduce(x, {EVERYONE}, [0])",
    "reduce": f"kadril.ops.sum_reduce(x, {EVERYONE}, P_root)",
    "broadcast": f"kadril.ops.broadcast(x, P_root, {EVERYONE})",
    "broadcast_": f"kadril.ops.broadcast(x, P_root, {EVERYONE})",
    "allgather": f"kadril.ops.all_gather(x, {EVERYONE}, [0])",
    "reduce_scatter": f"kadril.ops.reduce_scatter(x, {EVERYONE}, [0])",
    "alltoall": f"kadril.ops.all_to_all(x, {EVERYONE}, 0, 0, 0)",
}


def as_source(x: AnyArray, operation: str) -> AnyArray:
    """Contiguous memory with the values of an array: its own, or a copy.

    Raises:
        ValueError: it requires a gradient.
        TypeError: it is no array.
    """
    if is_tensor(x):
        check_no_graph(x, operation)
        return cast("AnyArray", x.detach().resolve_conj().resolve_neg().contiguous())
    if isinstance(x, np.ndarray):
        is_plain = x.flags.c_contiguous and x.flags.writeable
        return x if is_plain else cast("AnyArray", np.array(x, order="C"))
    as_buffer(x)  # says what was expected
    raise AssertionError


def as_target(out: AnyArray, shape: Sequence[int] | None, operation: str) -> AnyArray:
    """Memory that a result is written into, of a shape; of any shape where that is None.

    Raises:
        ValueError: it has another shape, or requires a gradient.
        TypeError: it is no array.
    """
    if not isinstance(out, np.ndarray) and not is_tensor(out):
        as_buffer(out)  # says what was expected
    if shape is not None and tuple(out.shape) != tuple(shape):
        raise ValueError(
            f"{operation}: out has the shape {tuple(out.shape)}, and the result {tuple(shape)}"
        )
    if is_tensor(out):
        check_no_graph(out, operation)
        # Autograd compares versions: a graph that has saved this tensor refuses to continue.
        if not out.is_inference():
            torch_of(out).autograd.graph.increment_version(out)
    return out


def check_no_graph(x: torch.Tensor, operation: str) -> None:
    """Raise `ValueError` where a gradient would be lost."""
    if x.requires_grad and torch_of(x).is_grad_enabled():
        raise ValueError(
            f"kadril.{operation} moves values and records no graph, and this tensor requires a"
            f" gradient; use {DIFFERENTIABLE[operation]}, whose backward pass is the adjoint, or"
            " pass x.detach()"
        )


def new_like(x: AnyArray, shape: Sequence[int]) -> AnyArray:
    """New contiguous memory of the dtype of an array, on its device."""
    if is_tensor(x):
        return cast("AnyArray", torch_of(x).empty(tuple(shape), dtype=x.dtype, device=x.device))
    return cast("AnyArray", np.empty(tuple(shape), dtype=x.dtype))


def torch_of(_: torch.Tensor) -> Any:
    """Return torch, which has to be loaded since there is a tensor."""
    return sys.modules["torch"]
