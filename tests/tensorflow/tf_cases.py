"""The table of operations: each with what it gives on every rank, and its derivatives, in numpy.

    x_r, y_r      input and result of rank r; lists over ranks here
    back(g)       gradients of the inputs, of those of the results, by Horovod's convention
    again(h)      the same of `back`, which is made of collectives itself

All numbers are small and whole, or such numbers divided by the number of ranks, which is a power
of two: exact in every dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from tf_stage import hvd, make_variable, tf

__all__ = [
    "CASES",
    "COMPLEX",
    "DTYPES",
    "FLOATS",
    "INTEGERS",
    "WITHOUT_TENSORS",
    "OpCall",
    "cases_of",
    "inputs",
]

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
DTYPES = [*INTEGERS, *FLOATS, *COMPLEX]

ROWS = 4  # divisible by every number of ranks that tests run on

Arrays = list[Any]  # one of each rank


class OpCall(NamedTuple):
    """One way to call an operation."""

    op: str  # its name in `kadril.tensorflow`
    label: str
    run: Callable[[Any, str], Any]  # of a tensor and a name; the result
    forward: Callable[[Arrays], Arrays]
    back: Callable[[Arrays, Arrays], Arrays] | None = None  # of the inputs and of gradients
    again: Callable[[Arrays, Arrays], Arrays] | None = None
    dtypes: tuple[str, ...] = tuple(DTYPES)
    is_uneven: bool = False  # rank r has r + 1 rows


def inputs(case: OpCall, size: int) -> Arrays:
    """Inputs of each rank: 1, 2 and 3, so that a product over four ranks fits into int8."""
    found = []
    for rank in range(size):
        rows = rank + 1 if case.is_uneven else ROWS
        found.append((np.arange(rows * 3).reshape(rows, 3) + rank) % 3 + 1)
    return found


def cases_of(dtype: str) -> Iterator[OpCall]:
    """The cases that a dtype has."""
    return (case for case in CASES if dtype in case.dtypes)


# ---- numpy's models, each of the arrays of all ranks --------------------------------------------


def total(xs: Arrays) -> Arrays:
    return [np.sum(xs, axis=0)] * len(xs)


def mean(xs: Arrays) -> Arrays:
    """Return the mean; of whole numbers, its whole part."""
    whole = all(np.issubdtype(each.dtype, np.integer) for each in xs)
    result = np.sum(xs, axis=0) // len(xs) if whole else np.sum(xs, axis=0) / len(xs)
    return [result] * len(xs)


def scaled(xs: Arrays) -> Arrays:
    """Each rank's half, cut off where it is whole; then four times the sum."""
    whole = all(np.issubdtype(each.dtype, np.integer) for each in xs)
    return [4 * each for each in total([each // 2 if whole else each / 2 for each in xs])]


def rows_of(whole: Any, rank: int, size: int) -> Any:
    return whole[ROWS // size * rank : ROWS // size * (rank + 1)]


def scatter(wholes: Arrays) -> Arrays:
    return [rows_of(each, rank, len(wholes)) for rank, each in enumerate(wholes)]


def gather(xs: Arrays) -> Arrays:
    return [np.concatenate(xs)] * len(xs)


def own_rows(wholes: Arrays, xs: Arrays) -> Arrays:
    """Split a concatenation into the rows that each rank gave."""
    ends = np.cumsum([len(each) for each in xs])
    return [w[end - len(x) : end] for w, x, end in zip(wholes, xs, ends, strict=True)]


def exchange(xs: Arrays) -> Arrays:
    size = len(xs)
    return [np.concatenate([rows_of(x, rank, size) for x in xs]) for rank in range(size)]


def from_root(xs: Arrays) -> Arrays:
    return [xs[-1]] * len(xs)


def to_root(gs: Arrays) -> Arrays:
    return [each * (rank == len(gs) - 1) for rank, each in enumerate(mean(gs))]


def extreme_back(choose: Any) -> Callable[[Arrays, Arrays], Arrays]:
    """Give the gradient to the lowest rank that has the extreme value."""

    def back(xs: Arrays, gs: Arrays) -> Arrays:
        owner = np.argmax(np.stack(xs) == choose(xs, axis=0), axis=0)
        return [each * (owner == rank) for rank, each in enumerate(total(gs))]

    return back


def extreme_again(choose: Any) -> Callable[[Arrays, Arrays], Arrays]:
    def again(xs: Arrays, hs: Arrays) -> Arrays:
        owner = np.argmax(np.stack(xs) == choose(xs, axis=0), axis=0)
        return total([each * (owner == rank) for rank, each in enumerate(hs)])

    return again


def product_back(xs: Arrays, gs: Arrays) -> Arrays:
    others = [np.prod([x for i, x in enumerate(xs) if i != r], axis=0) for r in range(len(xs))]
    return [each * other for each, other in zip(total(gs), others, strict=True)]


def of(function: Callable[[Arrays], Arrays]) -> Callable[[Arrays, Arrays], Arrays]:
    """A derivative that does not depend on the inputs."""
    return lambda _, gs: function(gs)


def times_size(gs: Arrays) -> Arrays:
    return [each * len(gs) for each in gs]


# ---- calls --------------------------------------------------------------------------------------


def last() -> int:
    return int(hvd.size()) - 1


def options_of(op: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Keywords of a call; the reduction is looked up in a rank, which has TensorFlow."""
    return options if op is None else {"op": getattr(hvd, op), **options}


def reduce(op: str | None = None, **options: Any) -> Callable[[Any, str], Any]:
    return lambda x, name: hvd.allreduce(x, name=name, **options_of(op, options))


def compress(x: Any, name: str) -> Any:
    return hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16, name=name)


def scatter_by(op: str) -> Callable[[Any, str], Any]:
    return lambda x, name: hvd.reducescatter(x, name=name, **options_of(op, {}))


def grouped(kind: str, op: str | None = None) -> Callable[[Any, str], Any]:
    """The second of a group; the first is of another dtype and shape."""

    def run(x: Any, name: str) -> Any:
        first = tf.ones([ROWS], tf.int32 if x.dtype == tf.float32 else tf.float32)
        named = {} if kind == "grouped_reducescatter" else {"name": name}
        other, result = getattr(hvd, kind)([first, x], **options_of(op, named))
        with tf.control_dependencies([other]):
            return tf.identity(result)

    return run


def split_evenly(x: Any, name: str) -> Any:
    return hvd.alltoall(x, [ROWS // hvd.size()] * hvd.size(), name=name)[0]


def assigned(x: Any, name: str) -> Any:
    """Return the value that a variable has after the broadcast."""
    variable = make_variable(np.zeros(x.shape, x.dtype.as_numpy_dtype))
    with tf.control_dependencies([variable.assign(x)]):
        (value,) = hvd.broadcast_([variable], last(), name=name)
    with tf.control_dependencies([value]):
        return variable.read_value()


def slices(kind: str, op: str | None = None) -> Callable[[Any, str], Any]:
    """Rows as slices of a table: what is gathered of their values."""

    def run(x: Any, name: str) -> Any:
        rows = tf.shape(x, tf.int64)[0]
        mine = tf.IndexedSlices(x, tf.range(rows), tf.stack([rows, 3]))
        given = mine if kind == "allreduce" else [mine, mine]
        reduced = getattr(hvd, kind)(given, **options_of(op, {"name": name}))
        found = reduced if kind == "allreduce" else reduced[1]
        with tf.control_dependencies([found.indices]):
            return tf.identity(found.values)

    return run


REAL = (*INTEGERS, *FLOATS)
INEXACT = (*FLOATS, *COMPLEX)
EVERY = tuple(DTYPES)


def twice(xs: Arrays) -> Arrays:
    return [2 * each for each in total(xs)]


def spread_rows(xs: Arrays, gs: Arrays) -> Arrays:
    return own_rows(mean(gs), xs)


def gathered_mean(hs: Arrays) -> Arrays:
    return [each / len(hs) for each in gather(hs)]


def least(xs: Arrays) -> Arrays:
    return [np.min(xs, axis=0)] * len(xs)


def most(xs: Arrays) -> Arrays:
    return [np.max(xs, axis=0)] * len(xs)


def product(xs: Arrays) -> Arrays:
    return [np.prod(xs, axis=0)] * len(xs)


def sums_of_own_rows(xs: Arrays) -> Arrays:
    return scatter(total(xs))


def means_of_own_rows(xs: Arrays) -> Arrays:
    return scatter(mean(xs))


def gathered_sums(gs: Arrays) -> Arrays:
    return gather(times_size(gs))


def scattered_sums(hs: Arrays) -> Arrays:
    return times_size(scatter(mean(hs)))


def root_mean(hs: Arrays) -> Arrays:
    return [hs[-1] / len(hs)] * len(hs)


LEAST = (least, extreme_back(np.min), extreme_again(np.min))
MOST = (most, extreme_back(np.max), extreme_again(np.max))
SUM = (total, of(total), of(total))
MEAN = (mean, of(mean), of(mean))
ROWS_OF_ALL = (gather, spread_rows, of(gathered_mean))
EXCHANGE = (exchange, of(exchange), of(exchange))
SCATTERED = (sums_of_own_rows, of(gathered_sums), of(scattered_sums))

CASES = [
    OpCall("allreduce", "sum", reduce("Sum"), *SUM),
    OpCall("allreduce", "mean", reduce(), *MEAN),
    OpCall("allreduce", "min", reduce("Min"), *LEAST, REAL),
    OpCall("allreduce", "max", reduce("Max"), *MOST, REAL),
    OpCall("allreduce", "product", reduce("Product"), product, product_back),
    OpCall(
        "allreduce",
        "scaled",
        reduce("Sum", prescale_factor=0.5, postscale_factor=4.0),
        scaled,
        of(twice),
        of(twice),
    ),
    OpCall("allreduce", "fp16", compress, *SUM, tuple(FLOATS)),
    OpCall(
        "allreduce", "slices", slices("allreduce"), gathered_mean, dtypes=INEXACT, is_uneven=True
    ),
    OpCall("allreduce", "slices sum", slices("allreduce", "Sum"), gather, is_uneven=True),
    OpCall("grouped_allreduce", "sum", grouped("grouped_allreduce", "Sum"), *SUM),
    OpCall("grouped_allreduce", "mean", grouped("grouped_allreduce"), *MEAN),
    OpCall(
        "grouped_allreduce", "slices", slices("grouped_allreduce", "Sum"), gather, is_uneven=True
    ),
    OpCall(
        "allgather",
        "rows",
        lambda x, name: hvd.allgather(x, name=name),
        *ROWS_OF_ALL,
        is_uneven=True,
    ),
    OpCall("grouped_allgather", "rows", grouped("grouped_allgather"), *ROWS_OF_ALL, is_uneven=True),
    OpCall(
        "broadcast",
        "last",
        lambda x, name: hvd.broadcast(x, last(), name=name),
        from_root,
        of(to_root),
        of(root_mean),
    ),
    OpCall("broadcast_", "last", assigned, from_root),
    OpCall("alltoall", "splits", split_evenly, *EXCHANGE),
    OpCall("alltoall", "even", lambda x, name: hvd.alltoall(x, name=name), *EXCHANGE),
    OpCall("reducescatter", "sum", scatter_by("Sum"), *SCATTERED),
    OpCall(
        "reducescatter",
        "mean",
        scatter_by("Average"),
        means_of_own_rows,
        of(gather),
        of(means_of_own_rows),
    ),
    OpCall("grouped_reducescatter", "sum", grouped("grouped_reducescatter", "Sum"), *SCATTERED),
]

# Operations that have no tensors, with the function or the number that says what they give.
WITHOUT_TENSORS: dict[str, Any] = {
    "rank_op": "rank",
    "size_op": "size",
    "local_rank_op": "local_rank",
    "local_size_op": "local_size",
    "process_set_included_op": 1,
    "barrier": None,
    "join": None,
}
