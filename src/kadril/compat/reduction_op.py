"""Reduction operations under mpi4py's names: SUM, PROD, MIN, MAX, BAND and BOR."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, cast

from kadril.errors import UnsupportedError
from kadril.transport.base import Op as OpName

__all__ = ["OPS", "Op", "op_name", "op_of"]


class Op:
    """A reduction operation.

    Attributes:
        name: of the transport's reduction.
        on_objects: the same for two objects.
    """

    def __init__(self, name: str, on_objects: Callable[[Any, Any], Any]) -> None:
        self.name = name
        self.on_objects = on_objects

    def __repr__(self) -> str:
        return f"Op({self.name!r})"

    def __call__(self, one: Any, other: Any) -> Any:
        """Reduce two objects."""
        return self.on_objects(one, other)


OPS = {
    "SUM": Op("sum", operator.add),
    "PROD": Op("product", operator.mul),
    "MIN": Op("min", min),
    "MAX": Op("max", max),
    "BAND": Op("band", operator.and_),
    "BOR": Op("bor", operator.or_),
}


def op_of(op: object) -> Op:
    """Return a reduction, given as an `Op`, by its name, or as mpi4py's own.

    Raises:
        UnsupportedError: none of them.
    """
    if isinstance(op, Op):
        return op
    if isinstance(op, str) and op.upper() in OPS:
        return OPS[op.upper()]
    mpi = sys.modules.get("mpi4py.MPI")
    for name, each in OPS.items():
        if mpi is not None and op == getattr(mpi, name):
            return each
    raise UnsupportedError(f"reductions are {', '.join(OPS)}; got {op!r}")


def op_name(op: object) -> OpName:
    """Return the transport's name of a reduction; raises as `op_of`."""
    return cast("OpName", op_of(op).name)
