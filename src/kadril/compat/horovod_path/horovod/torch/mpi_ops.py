"""Collectives, handles and basics, and the internals of Horovod that programs use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch

from kadril.shared_engine import handles
from kadril.shared_engine.process_sets import ProcessSet
from kadril.shared_engine.reduce_ops import choose_op
from kadril.torch.ops.allreduce import AllReduce

from .._forward import forward
from ..common.basics import HorovodBasics
from . import mpi_lib_v2 as mpi_lib

# Every other name is that of kadril.torch.
__getattr__ = forward("kadril.torch")

_NULL = ""

_basics = HorovodBasics(__file__, "mpi_lib_v2")


class HandleMap(MutableMapping[int, tuple[Any, ...]]):
    """Tensors of operations under way: (tensor, output) by their handles.

    An operation is in it until it is synchronized. The tensor has the values as they were given to
    the engine; of a group it is a list. The output is None where it does not exist before the
    operation is done, such as that of an all-gather.
    """

    def __init__(self) -> None:
        self._given: dict[int, tuple[Any, ...]] = {}  # what callers of mpi_lib put here

    def __getitem__(self, handle: int) -> tuple[Any, ...]:
        pending = handles._pending[handle]
        if handle in self._given:
            return self._given[handle]
        if isinstance(pending.kept, mpi_lib.Operands):
            return pending.kept.tensor, pending.kept.output
        output = None if isinstance(pending.result, handles.Finish) else pending.result
        kept = pending.kept
        if isinstance(kept, list) and len(kept) == 1:
            (kept,) = kept
        return (output if kept is None else kept), output

    def __setitem__(self, handle: int, value: tuple[Any, ...]) -> None:
        if handle not in handles._pending:
            raise KeyError(handle)
        known = {each: given for each, given in self._given.items() if each in handles._pending}
        self._given = {**known, handle: value}

    def __delitem__(self, handle: int) -> None:
        # The memory that an operation under way writes to must stay alive.
        if handle in handles._pending and not handles._pending[handle].completion.is_done:
            raise ValueError(f"the operation of handle {handle} is under way; synchronize it")
        del handles._pending[handle]

    def __iter__(self) -> Iterator[int]:
        return iter(list(handles._pending))

    def __len__(self) -> int:
        return len(handles._pending)


_handle_map = HandleMap()


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Return the operation chosen by `op` and the older `average`."""
    return choose_op(op, average)


def _allreduce_function_factory(tensor: torch.Tensor) -> str:
    return "horovod_torch_allreduce_async_" + tensor.type().replace(".", "_")


def _check_function(function_factory: Callable[[torch.Tensor], str], tensor: torch.Tensor) -> str:
    """Return the name of the function of `mpi_lib` for a tensor.

    Raises:
        ValueError: there is none for tensors of this type.
    """
    function = function_factory(tensor)
    if not hasattr(mpi_lib, function):
        raise ValueError(f"Tensor type {tensor.type()} is not supported.")
    return function


def _allreduce_async(
    tensor: torch.Tensor,
    output: torch.Tensor,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> int:
    """Start an all-reduce of `tensor` into `output`, which may be the same; return its handle.

    Raises:
        ValueError: there is no such op, the name is in use, or this rank is not in the set.
    """
    function = _check_function(_allreduce_function_factory, tensor)
    set_id = process_set.process_set_id
    if set_id is None:
        raise ValueError(f"{process_set} is not registered; pass it to add_process_set() first")
    handle: int = getattr(mpi_lib, function)(
        tensor,
        output,
        1,
        _NULL if name is None else name.encode(),
        choose_op(op, None),
        prescale_factor,
        postscale_factor,
        set_id,
    )
    return handle


class HorovodAllreduce(torch.autograd.Function):
    """The differentiable all-reduce, with Horovod's arguments."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Reduce the tensor, and save what the backward pass needs."""
        chosen = choose_op(op, average)
        return AllReduce.forward(
            ctx, tensor, name, chosen, prescale_factor, postscale_factor, process_set
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of the arguments; only the tensor has one."""
        result, *_ = AllReduce.backward(ctx, *gradients)
        return result, None, None, None, None, None, None
