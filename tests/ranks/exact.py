"""Inputs whose reductions are exact in every dtype, and the results to expect.

Values are small integers, a formula of rank and element, so that no addition rounds: results are
compared with `==`, and an element that landed in the wrong place is seen. The references are made
with numpy in 64 bits, apart from the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from kadril.transport.base import OPS
from kadril.transport.buffer import DTYPES, Array
from kadril.transport.tensor import tensor_bytes

__all__ = [
    "DTYPE_NAMES",
    "FLOATS",
    "expected",
    "inputs",
    "misaligned",
    "ops_of",
    "pairwise",
    "reduce_by_hosts",
    "reduce_in_order",
    "same",
    "scales_of",
    "torch_dtype",
]

DTYPE_NAMES = tuple(DTYPES)
FLOATS = ("float16", "bfloat16", "float32", "float64")
SCALES = ((1.0, 1.0), (2.0, 0.5), (0.5, 2.0))

Values = npt.NDArray[np.generic]


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def ops_of(name: str) -> tuple[str, ...]:
    """The ops that make sense for a dtype."""
    if name.startswith("complex"):
        return ("sum", "product")
    return OPS[:4] if name in FLOATS else OPS


def scales_of(name: str, op: str) -> tuple[tuple[float, float], ...]:
    """Scales under which results stay exact, and within 8 bits; a bool is not scaled."""
    if name == "bool":
        return SCALES[:1]
    return (SCALES[0], SCALES[2]) if op in ("band", "bor") else SCALES


def pattern(name: str, op: str, rank: int, count: int) -> Values:
    """Return the input of a rank, in 64 bits."""
    i = np.arange(count, dtype=np.int64)
    signed = not (name.startswith("uint") or name == "bool")
    if name == "bool":
        return (i >> (rank % 8)) & 1 == 1
    if op == "sum":
        values = (i * 7 + rank * 3) % 5 - (2 if signed else 0)
    elif op == "product":
        # One rank of any four has a 2, the others 1 or -1, so that four of them fit 8 bits.
        sign = np.where((i + rank) % 3 == 0, -1 if signed else 1, 1)
        values = np.where((i + rank) % 4 == 0, 2, sign)
    elif op in ("min", "max"):
        values = (i * 13 + rank * 29) % 97 - (48 if signed else 0)
    else:
        values = (i * 37 + rank * 59) % 128
    if name.startswith("complex"):
        return values + 1j * np.roll(values, 1)
    return values.astype(np.float64) if name in FLOATS else values


def inputs(name: str, op: str, rank: int, count: int) -> torch.Tensor:
    """Return the input of a rank, as a tensor."""
    return as_dtype(pattern(name, op, rank, count), name)


def expected(
    name: str, op: str, size: int, count: int, prescale: float = 1.0, postscale: float = 1.0
) -> torch.Tensor:
    """The reduction of `inputs` of all ranks."""
    given = [scaled(pattern(name, op, rank, count), prescale) for rank in range(size)]
    combine = {
        "sum": np.logical_or if name == "bool" else np.add,
        "product": np.logical_and if name == "bool" else np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
    }[op]
    result = given[0]
    for values in given[1:]:
        result = combine(result, values)
    return as_dtype(scaled(result, postscale), name)


def scaled(values: Values, factor: float) -> Values:
    """Multiply; integers in float64 and truncated toward zero."""
    if factor == 1.0:
        return values
    if values.dtype == np.int64:
        return np.trunc(values * factor).astype(np.int64)
    return values * factor


def as_dtype(values: Values, name: str) -> torch.Tensor:
    """Values that fit a dtype, in it."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch_dtype(name))


def reduce_in_order(given: Sequence[torch.Tensor], scales: tuple[float, float]) -> torch.Tensor:
    """The sum of float tensors as every transport must make it, to the last bit.

    Pairwise in rank order, 16-bit floats in float32 and rounded once.
    """
    dtype = given[0].dtype
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    prescale, postscale = scales
    total = pairwise([tensor.to(wide) * prescale for tensor in given], torch.add)
    return (total * postscale).to(dtype)


def reduce_by_hosts(
    given: Sequence[torch.Tensor], scales: tuple[float, float], hosts: Sequence[Sequence[int]]
) -> torch.Tensor:
    """The sum of float tensors as tiers must make it: inside hosts, then across, rounded between.

    The result is scaled; of 16-bit floats each partial sum is, before it is rounded. With one host
    that is `reduce_in_order`.
    """
    if len(hosts) == 1:
        return reduce_in_order(given, scales)
    before, after = scales
    inside, last = (after, 1.0) if given[0].element_size() == 2 else (1.0, after)
    partial = [reduce_in_order([given[rank] for rank in host], (before, inside)) for host in hosts]
    return reduce_in_order(partial, (1.0, last))


def pairwise(
    given: Sequence[torch.Tensor], combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Reduce tensors in the order that `native/kernels.h` defines.

    total(lo, hi) = total(lo, mid) + total(mid, hi), and mid - lo is the largest power of two below
    hi - lo.
    """
    if len(given) == 1:
        return given[0]
    middle = 1 << (len(given) - 1).bit_length() - 1
    return combine(pairwise(given[:middle], combine), pairwise(given[middle:], combine))


def same(one: Array, other: Array) -> bool:
    """Whether two arrays hold the same values; floats and complex numbers by `==`."""
    a, b = (x if isinstance(x, torch.Tensor) else torch.from_numpy(x) for x in (one, other))
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.is_floating_point() or a.is_complex():
        return bool((a == b).all())
    return torch.equal(tensor_bytes(a), tensor_bytes(b))  # torch compares no uint16 and wider


def misaligned(tensor: torch.Tensor, offset: int = 1) -> torch.Tensor:
    """A copy that begins at an address which is not a multiple of its element's size."""
    if tensor.numel() == 0:
        return tensor.clone()
    size = tensor.numel() * tensor.element_size()
    memory = bytearray(size + 64)
    begin = offset - torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % 16 + 16
    copy = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=begin)
    tensor_bytes(copy).copy_(tensor_bytes(tensor))
    return copy.view(tensor.shape)
