"""Model of the ops: their results, worked out in one process with numpy in 64 bits.

Inputs are formulas of rank and element (see `exact.py`), so a rank knows what every other gives.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from exact import DTYPE_NAMES, Values, as_dtype, pattern, scaled

import kadril.torch as hvd

__all__ = [
    "DTYPE_NAMES",
    "INTEGERS",
    "OPS",
    "adasum",
    "fits",
    "gathered",
    "given",
    "ops_of",
    "reduced",
    "rows_of",
    "share",
]

OPS = {
    "average": hvd.Average,
    "sum": hvd.Sum,
    "min": hvd.Min,
    "max": hvd.Max,
    "product": hvd.Product,
}
INTEGERS = tuple(name for name in DTYPE_NAMES if "int" in name)

# Divides by every size of a world here, so that an average is a whole number in every dtype; and
# the largest sum, 4 ranks * 4 * 12, fits 8 bits.
DIVISIBLE = 12


def ops_of(name: str) -> tuple[str, ...]:
    """The ops that have a meaning for a dtype."""
    if name == "bool":
        return ("sum", "min", "max", "product")
    if name.startswith("complex"):
        return ("average", "sum", "product")
    return tuple(OPS)


def values_of(name: str, op: str, rank: int, count: int) -> Values:
    """Return the input of a rank, in 64 bits."""
    if op == "average":
        return pattern(name, "sum", rank, count) * DIVISIBLE
    return pattern(name, op, rank, count)


def given(name: str, op: str, rank: int, *shape: int) -> torch.Tensor:
    """Return the input of a rank, as a tensor."""
    count = int(np.prod(shape, dtype=np.int64))
    return as_dtype(values_of(name, op, rank, count).reshape(shape), name)


def reduced(
    name: str,
    op: str,
    ranks: Sequence[int],
    *shape: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> torch.Tensor:
    """The reduction of what these ranks give."""
    count = int(np.prod(shape, dtype=np.int64))
    combine = {
        "sum": np.logical_or if name == "bool" else np.add,
        "average": np.add,
        "product": np.logical_and if name == "bool" else np.multiply,
        "min": np.minimum,
        "max": np.maximum,
    }[op]
    inputs = [scaled(values_of(name, op, rank, count), prescale) for rank in ranks]
    result = functools.reduce(combine, inputs)
    if op == "average":
        # One factor, so one truncation. Quotients of numbers this small are whole, or far from it.
        result = np.divide(np.multiply(result, postscale), len(ranks))
        result = np.trunc(result).astype(np.int64) if name in INTEGERS else result
    else:
        result = scaled(result, postscale)
    return as_dtype(result.reshape(shape), name)


def fits(name: str, op: str, size: int, count: int, prescale: float) -> bool:
    """Whether a dtype holds the scaled inputs and their reduction exactly."""
    given_values = [scaled(values_of(name, op, rank, count), prescale) for rank in range(size)]
    kind = "sum" if op == "average" else op
    combine = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}[kind]
    seen = [*given_values, functools.reduce(combine, given_values)]
    if name in INTEGERS:
        limits = np.iinfo(name)
        return all(limits.min <= x.min() and x.max() <= limits.max for x in seen)
    largest = {"bfloat16": 2**8, "float16": 2**11}.get(name, 2**24)
    return all(np.abs(x).max() <= largest for x in seen)


def rows_of(rank: int, base: int = 2) -> int:
    """Rows that differ from rank to rank; every third rank, beginning with the second, has none."""
    return 0 if rank % 3 == 1 else base + rank


def gathered(
    name: str, ranks: Sequence[int], rows: Sequence[int], *trailing: int, op: str = "sum"
) -> torch.Tensor:
    """Return `given(name, op, rank, rows[i], *trailing)` of these ranks, one below the other."""
    width = int(np.prod(trailing, dtype=np.int64))
    parts = [
        values_of(name, op, rank, count * width).reshape(count, *trailing)
        for rank, count in zip(ranks, rows, strict=True)
    ]
    return as_dtype(np.concatenate(parts), name)


def share(num_rows: int, size: int, place: int) -> slice:
    """The rows that a rank gets of a reduce-scatter: the first `num_rows % size` get one more."""
    base, extra = divmod(num_rows, size)
    begin = place * base + min(place, extra)
    return slice(begin, begin + base + (place < extra))


Vector = npt.NDArray[np.float64]


def adasum(vectors: Sequence[Vector]) -> Vector:
    r"""Combine neighbours, then neighbours of the results, until one is left; an odd one waits.

    0   1   2   3   4
     \ /     \ /    |
      o       o     |
       \     /      |
          o         |
           \       /
               o
    """
    level = list(vectors)
    while len(level) > 1:
        pairs = [adasum_of_two(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def adasum_of_two(a: Vector, b: Vector) -> Vector:
    """Half of what each has in the direction of the other, and all of the rest."""
    dot, norm_a, norm_b = float(np.vdot(a, b)), float(np.vdot(a, a)), float(np.vdot(b, b))
    part_a = 1.0 - dot / (2.0 * norm_a) if norm_a else 1.0
    part_b = 1.0 - dot / (2.0 * norm_b) if norm_b else 1.0
    return a * part_a + b * part_b
