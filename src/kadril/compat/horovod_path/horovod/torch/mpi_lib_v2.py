"""The functions of Horovod's compiled module for torch, by the names of tensor types.

    horovod_torch_allreduce_async_torch_FloatTensor(tensor, output, divisor, name, op,
                                                    prescale, postscale, process_set_id) -> handle

There is one for each type of tensor: `tensor.type()` with underscores.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kadril.engine import Verb
from kadril.shared_engine.context import context
from kadril.shared_engine.handles import Finish, forget_all, keep, poll, synchronize
from kadril.torch.ops.staging import put_back, staged

__all__ = [
    "horovod_torch_poll",
    "horovod_torch_reset",
    "horovod_torch_wait_and_clear",
]

TYPES = (
    "Bool",
    "Byte",
    "Char",
    "Short",
    "Int",
    "Long",
    "Half",
    "BFloat16",
    "Float",
    "Double",
    "ComplexFloat",
    "ComplexDouble",
)


class Operands(NamedTuple):
    """Tensors of an operation, and the memory that it uses; alive until it is done."""

    tensor: torch.Tensor
    output: torch.Tensor
    source: torch.Tensor


def allreduce_async(
    tensor: torch.Tensor,
    output: torch.Tensor,
    divisor: int,
    name: str | bytes,
    reduce_op_int: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set_id: int,
) -> int:
    """Start an all-reduce into `output`, which may be `tensor`; return its handle.

    Args:
        tensor: the values of this rank.
        output: of the same dtype and shape.
        divisor: divides the result, where it is greater than 1.
        name: what ranks know the operation by; empty for none.
        reduce_op_int: Average, Sum, Adasum, Min, Max or Product.
        prescale_factor: applied to every rank's values.
        postscale_factor: applied to the result.
        process_set_id: number of the process set that takes part.

    Raises:
        ValueError: the output does not match, the name is in use, or there is no such process set.
    """
    if output.dtype != tensor.dtype or output.shape != tensor.shape:
        raise ValueError(
            f"the output is {output.dtype} of shape {list(output.shape)}, and the tensor"
            f" {tensor.dtype} of shape {list(tensor.shape)}"
        )
    conductor = context().engine.conductor(process_set_id)
    text = name.decode() if isinstance(name, bytes) else name
    source = staged(tensor)
    target = source if output is tensor else staged(output)
    completion = conductor.submit(
        Verb.ALLREDUCE,
        source,
        target,
        name=text or None,
        reduction=reduce_op_int,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )

    def finish(_: Any) -> torch.Tensor:
        result = put_back(output, target)
        return result.div_(divisor) if divisor > 1 else result

    is_there = divisor <= 1 and output.is_cpu and target.data_ptr() == output.data_ptr()
    operands = Operands(tensor, output, source)
    return keep(conductor, completion, output if is_there else Finish(finish), operands)


def horovod_torch_poll(handle: int) -> bool:
    """Whether an operation is done."""
    return poll(handle)


def horovod_torch_wait_and_clear(handle: int) -> None:
    """Wait for an operation, and forget it."""
    synchronize(handle)


def horovod_torch_reset() -> None:
    """Forget the operations that are done."""
    forget_all()


for _type in TYPES:
    for _place in ("torch", "torch_cuda"):
        globals()[f"horovod_torch_allreduce_async_{_place}_{_type}Tensor"] = allreduce_async
