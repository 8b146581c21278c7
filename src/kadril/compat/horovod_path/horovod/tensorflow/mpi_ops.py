"""Collectives and basics, and the internals of Horovod that programs use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kadril.tensorflow import basics, collectives, ops
from kadril.tensorflow.basics import Sum
from kadril.tensorflow.naming import normalize as _normalize_name  # noqa: F401 - Horovod's name

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


def _summing(reduce: Callable[..., Any], *order: str) -> Callable[..., Any]:
    """Return an operation with Horovod's order of arguments, which sums where it is not told."""

    def run(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        given = {"op": Sum, **dict(zip(order, arguments, strict=False)), **keywords}
        return reduce(tensors, **given)

    return run


def _grouped_reducescatter(
    tensors: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    **options: Any,
) -> Any:
    """Reduce and scatter several tensors as one request, which has no name."""
    del name, ignore_name_scope
    return ops.grouped_reducescatter(tensors, op=op, **options)


_FACTORS = ("prescale_factor", "postscale_factor")
_SCOPE = ("ignore_name_scope", "process_set")
_allreduce = _summing(ops.allreduce, "name", "op", *_FACTORS, *_SCOPE)
_grouped_allreduce = _summing(ops.grouped_allreduce, "name", "op", *_FACTORS, *_SCOPE)
_reducescatter = _summing(ops.reducescatter, "name", "op", *_SCOPE, *_FACTORS)
