"""Whether a reduced list agrees with its reference, element by element.

    error = |value - reference| / max(|reference|, floor)

An error above the limit fails, and so does a NaN or an infinity in either of the two: its error is
infinite. The floor is for sums near zero. There a relative error says nothing, since all digits of
the terms have cancelled out:

    floor = sqrt(eps) * (the largest |input| of the parameter on any rank)     half of its digits
          = 1                                                                  for whole numbers

With float32 terms up to 1 the floor is 0.00035. Two orders of additions over p ranks differ by no
more than 2 p log2(p) eps of the largest term, so an element at the floor has an error of at most
2 p log2(p) sqrt(eps): 0.017 on 8 ranks, far below any limit that makes sense.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kadril.ddl.ways import widened
from kadril.transport.base import Transport

__all__ = ["Finding", "find_worst", "floors_of", "largest_inputs"]

Values = npt.NDArray[Any]


class Finding(NamedTuple):
    """The worst element of a list.

    Attributes:
        parameter: place in the list.
        element: flat index in the parameter.
        value: of the all-reduce.
        reference: of the reference.
        error: see the head of this file.
        num_wrong: number of elements of all parameters whose error is above the limit.
    """

    parameter: int
    element: int
    value: complex
    reference: complex
    error: float
    num_wrong: int


def largest_inputs(arrays: Sequence[torch.Tensor], transport: Transport) -> list[float]:
    """The largest finite |input| of each parameter on any rank; collective."""
    mine = np.zeros(max(len(arrays), 1))
    for place, array in enumerate(arrays):
        sizes = np.abs(wide(array))
        mine[place] = np.max(sizes, initial=0.0, where=np.isfinite(sizes))
    transport.allreduce(mine, "max", name="ddl.check.largest")
    return [float(each) for each in mine[: len(arrays)]]


def floors_of(arrays: Sequence[torch.Tensor], largest: Sequence[float]) -> list[float]:
    """The floor of each parameter."""
    return [floor_of(array.dtype, size) for array, size in zip(arrays, largest, strict=True)]


def floor_of(dtype: torch.dtype, largest: float) -> float:
    """The least |reference| that an error is divided by."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 1.0
    info = torch.finfo(dtype)
    return max(math.sqrt(info.eps) * largest, info.tiny)


def find_worst(
    values: Sequence[torch.Tensor],
    references: Sequence[torch.Tensor],
    floors: Sequence[float],
    limit: float,
) -> Finding | None:
    """The element with the largest error, or None where no error is above the limit."""
    worst: Finding | None = None
    num_wrong = 0
    for place, (value, reference, floor) in enumerate(zip(values, references, floors, strict=True)):
        a, b = wide(value).reshape(-1), wide(reference).reshape(-1)
        errors = errors_of(a, b, floor)
        wrong = int(np.count_nonzero(errors > limit))
        num_wrong += wrong
        if not wrong:
            continue
        element = int(np.argmax(errors))
        if worst is None or errors[element] > worst.error:
            found = (as_number(a[element]), as_number(b[element]), float(errors[element]))
            worst = Finding(place, element, *found, 0)
    return None if worst is None else worst._replace(num_wrong=num_wrong)


def errors_of(values: Values, references: Values, floor: float) -> Values:
    """The error of each element, in float64."""
    with np.errstate(all="ignore"):
        errors = np.abs(values - references) / np.maximum(np.abs(references), floor)
    broken = ~(np.isfinite(values) & np.isfinite(references))
    return np.where(broken, np.inf, errors)


def wide(array: torch.Tensor) -> Values:
    """Elements in a dtype in which differences are exact enough."""
    values = widened(array)
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def as_number(value: Any) -> complex:
    """A number of Python."""
    return complex(value) if np.iscomplexobj(value) else float(value)
