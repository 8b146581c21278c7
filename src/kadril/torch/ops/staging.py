"""Staging of a user's tensor: to memory that the engine can take, and back.

The engine takes contiguous CPU memory. Most tensors are that; others (transposed, on a device,
conjugated lazily) are copied, and their result is copied back or put where the tensor is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril._native import Completion
from kadril.engine import ProcessSetConductor
from kadril.shared_engine.context import context, holder
from kadril.shared_engine.process_sets import ProcessSet
from kadril.transport.tensor import TORCH_DTYPE_OF_CODE, memory_tensor

__all__ = [
    "as_tensor_list",
    "conductor_of",
    "outputs_of",
    "put_back",
    "staged",
]


def conductor_of(process_set: ProcessSet) -> ProcessSetConductor:
    """The conductor of a process set.

    Raises:
        ValueError: it is not registered, or this rank is not in it.
        NotInitializedError: before `init()`.
    """
    set_id = process_set.process_set_id
    found = holder.context
    # A closed engine has no conductors.
    conductor = None if found is None else found.engine.conductors.get(set_id)
    if conductor is not None:
        return conductor
    engine = context().engine
    if set_id is None:
        raise ValueError(
            f"{process_set} is not registered; pass it to init() or add_process_set() first"
        )
    return engine.conductor(set_id)


def staged(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor in contiguous CPU memory: the tensor's own where it is that.

    Raises:
        TypeError: not a tensor.
        ValueError: a sparse tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"a tensor of layout {tensor.layout} cannot be moved; use sparse_allreduce_async, or"
            " tensor.to_dense()"
        )
    tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    return tensor.resolve_conj().resolve_neg().contiguous()


def put_back(target: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Write a result to the tensor that an in-place operation works on."""
    if result.data_ptr() != target.data_ptr() or not target.is_cpu:
        with torch.no_grad():
            target.copy_(result)
    return target


def outputs_of(completion: Completion, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    """The results that the engine has made, on the devices of the tensors that were given."""
    tensors = []
    for (memory, code, shape), device in zip(completion.take_outputs(), devices, strict=True):
        tensor = memory_tensor(memory, TORCH_DTYPE_OF_CODE[code]).reshape(shape)
        tensors.append(tensor if device.type == "cpu" else tensor.to(device))
    return tensors


def as_tensor_list(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a group.

    Raises:
        ValueError: there are none, or they are on different devices.
        TypeError: a single tensor, or something else.
    """
    if isinstance(tensors, torch.Tensor):
        raise TypeError("a group is a list of tensors, not one tensor")
    listed = list(tensors)
    for tensor in listed:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"expected torch tensors, got {type(tensor).__name__}")
    if not listed:
        raise ValueError("a group needs at least one tensor")
    if len({tensor.device for tensor in listed}) > 1:
        raise ValueError(
            "the tensors of a group are on different devices:"
            f" {sorted({str(tensor.device) for tensor in listed})}"
        )
    return listed
