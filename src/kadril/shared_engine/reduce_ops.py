"""The reductions, by the numbers that scripts know them by."""

from __future__ import annotations

import warnings

from kadril.engine import Reduction

__all__ = ["LINEAR", "OP_NAMES", "Adasum", "Average", "Max", "Min", "Product", "Sum", "choose_op"]

Average = int(Reduction.AVERAGE)
Sum = int(Reduction.SUM)
Adasum = int(Reduction.ADASUM)
Min = int(Reduction.MIN)
Max = int(Reduction.MAX)
Product = int(Reduction.PRODUCT)

# Those whose derivative does not depend on the values.
LINEAR = (Average, Sum)

OP_NAMES = {
    Average: "Average",
    Sum: "Sum",
    Adasum: "Adasum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
}


def choose_op(op: int | None, average: bool | None) -> int:
    """The op that was asked for, by `op` or by the older `average`.

    Raises:
        ValueError: both were given, or there is no such op.
    """
    if average is not None:
        if op is not None:
            raise ValueError("give op or average, not both; average is deprecated, use op")
        warnings.warn(
            "average is deprecated; use op=Average or op=Sum", DeprecationWarning, stacklevel=4
        )
        return Average if average else Sum
    if op is None:
        return Average
    if not Average <= op <= Product:
        raise ValueError(f"there is no op {op}; use Average, Sum, Adasum, Min, Max or Product")
    return op
