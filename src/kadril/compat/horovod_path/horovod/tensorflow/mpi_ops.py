"""Collectives and basics, and the internals of Horovod that programs use."""

from __future__ import annotations

import re
from typing import Any

from kadril.tensorflow import basics, collectives, ops
from kadril.tensorflow.basics import ProcessSet, Sum, global_process_set

from .._forward import forward
from ..common.basics import HorovodBasics

# Every other name is that of kadril.tensorflow.
__getattr__ = forward("kadril.tensorflow", "kadril.tensorflow.util")

_basics = HorovodBasics(__file__, "mpi_lib")
MPI_LIB: Any = collectives.LIBRARY


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Return the operation chosen by `op` and the older `average`."""
    return basics.choose_op(op, average)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def _normalize_name(name: str) -> str:
    """Return a name by TensorFlow's rules."""
    return re.sub("[^a-zA-Z0-9_]", "_", name)


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a tensor over all ranks; the sum by default."""
    return ops.allreduce(
        tensor,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        process_set=process_set,
    )


def _grouped_allreduce(
    tensors: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce several tensors as one request; the sum by default."""
    return ops.grouped_allreduce(
        tensors,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        process_set=process_set,
    )


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce over all ranks, each gets its rows; the sum by default."""
    return ops.reducescatter(
        tensor,
        name=name,
        op=op,
        ignore_name_scope=ignore_name_scope,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def _grouped_reducescatter(
    tensors: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce and scatter several tensors as one request; the sum by default."""
    del name, ignore_name_scope
    return ops.grouped_reducescatter(
        tensors,
        op=op,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
