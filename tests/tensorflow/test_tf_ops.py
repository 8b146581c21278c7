"""Every operation of the table, in every mode, for every dtype; exactly. And every error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tf_cases import CASES, DTYPES, INTEGERS, WITHOUT_TENSORS, OpCall, cases_of, inputs
from tf_stage import (
    MODES,
    check_works,
    every_mode,
    hvd,
    in_mode,
    make_variable,
    on_ranks,
    quick_and_long,
    tf,
)


def arrays(case: OpCall, dtype: str, size: int) -> list[Any]:
    """Arrays that all ranks give, as numpy computes with them."""
    return [each.astype(int if dtype in INTEGERS else float) for each in inputs(case, size)]


def same(found: Any, expected: Any, what: str) -> None:
    np.testing.assert_array_equal(np.asarray(found).astype(np.complex128), expected, what)


@on_ranks(1)
def test_every_operation_is_in_the_table(world: Any) -> None:
    tabled = {case.op for case in CASES} | set(WITHOUT_TENSORS)
    assert tabled == set(hvd.ops.__all__)
    assert tabled == {each[0] for each in mismatches()} | {each[0] for each in misuses()} | ALIKE
    differentiable = {case.op for case in CASES if case.back}
    assert differentiable == {case.op for case in CASES} - {"broadcast_"}


@on_ranks(1, 2, 4)
@quick_and_long(DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_every_dtype(world: Any, mode: str, dtypes: list[str]) -> None:
    """One graph, or one function, with every operation on all these dtypes."""
    rank, size = hvd.rank(), hvd.size()

    def make() -> list[Any]:
        results = []
        for dtype in dtypes:
            for case in cases_of(dtype):
                x = tf.cast(inputs(case, size)[rank], dtype)
                results.append(case.run(x, f"{case.op}.{case.label}.{dtype}"))
        return results

    found = iter(in_mode(mode, make))
    for dtype in dtypes:
        for case in cases_of(dtype):
            result = next(found)
            what = f"{case.op} {case.label} {dtype}"
            assert result.dtype == tf.as_dtype(dtype).as_numpy_dtype, what
            same(result, case.forward(arrays(case, dtype, size))[rank], what)
    assert next(found, None) is None


@on_ranks(1, 2, 4)
@pytest.mark.parametrize("mode", MODES)
def test_flags_and_adasum(world: Any, mode: str) -> None:
    """Booleans are moved, and not added; Adasum of equal vectors is that vector."""
    rank, size = hvd.rank(), hvd.size()

    def make() -> list[Any]:
        flags = tf.constant([rank == 0, True] * size)
        return [
            hvd.broadcast(flags, 0, name="root"),
            hvd.allgather(flags[:2], name="all"),
            hvd.alltoall(flags, name="exchanged"),
            *hvd.broadcast_([make_variable([rank == 0])], 0, name="kept"),
            hvd.allreduce(tf.constant([3.0, -4.0]), op=hvd.Adasum, name="adasum"),
        ]

    root, everyone, exchanged, kept, adasum = in_mode(mode, make)
    assert root.tolist() == [True, True] * size
    assert everyone.tolist() == exchanged.tolist() == [True, True, *[False, True] * (size - 1)]
    assert kept.tolist() == [True]
    assert adasum.tolist() == [3.0, -4.0]


@on_ranks(2)
def test_factors_have_all_their_bits(world: Any) -> None:
    """Factors were floats of 32 bits, in which 30 * 0.7 is below 21, and became 20."""

    def make() -> list[Any]:
        tenth = tf.ones([2], tf.float64)
        whole = tf.constant([30, 30])
        return [
            hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.7, name="before"),
            hvd.allreduce(whole, op=hvd.Sum, postscale_factor=0.7, name="after"),
            hvd.reducescatter(tenth, op=hvd.Sum, postscale_factor=0.1, name="scattered"),
            tf.gradients(hvd.allreduce(tenth, op=hvd.Sum, prescale_factor=0.1), tenth)[0]
            if not tf.executing_eagerly()
            else tenth * 0.2,
        ]

    for before, after, scattered, gradient in every_mode(make):
        assert before.tolist() == after.tolist() == [42, 42]
        assert scattered.tolist() == [0.2]
        assert gradient.tolist() == [0.2, 0.2]


@on_ranks(1, 2, 4)
@pytest.mark.parametrize("mode", MODES)
def test_operations_without_tensors(world: Any, mode: str) -> None:
    def make() -> list[Any]:
        barrier = hvd.barrier()  # in a graph the op, in eager mode nothing
        with tf.control_dependencies([barrier] if mode == "graph" else []):
            facts = [
                tf.identity(getattr(hvd, name)()) for name in WITHOUT_TENSORS if name.endswith("op")
            ]
            return [*facts, tf.identity(hvd.process_set_included_op(77))]

    found = [int(each) for each in in_mode(mode, make)]
    values = [value for name, value in WITHOUT_TENSORS.items() if name.endswith("op")]
    known = [getattr(hvd, each)() if isinstance(each, str) else each for each in values]
    assert found == [*known, -3]
    if hvd.rank() == 0:

        def alone() -> Any:
            return hvd.allreduce(tf.ones(2), op=hvd.Sum, name="alone")

        assert in_mode(mode, alone).tolist() == [1, 1]
    last = int(in_mode(mode, hvd.join))
    assert 0 <= last < hvd.size()
    assert hvd.allgather(tf.constant([last])).numpy().tolist() == [last] * hvd.size()
    check_works()


# What has no arguments that ranks could give differently, or wrongly.
ALIKE = {"rank_op", "local_rank_op", "local_size_op", "process_set_included_op", "join", "barrier"}

Wrong = list[tuple[str, Callable[[], Any]]]


def mismatches() -> Wrong:
    """Calls in which the last rank asks for something else."""
    is_odd = hvd.rank() == hvd.size() - 1
    more = int(is_odd)
    kind = tf.int64 if is_odd else tf.int32
    root = 0 if is_odd else hvd.size() - 1
    ones = np.ones(2 + more, np.float32), np.ones(2, np.int64 if is_odd else np.int32)
    return [
        ("allreduce", lambda: hvd.allreduce(tf.ones([2 + more]), name="shape")),
        ("allreduce", lambda: hvd.allreduce(tf.ones(2, kind), name="dtype")),
        (
            "allreduce",
            lambda: hvd.allreduce(tf.ones(2), op=hvd.Min if is_odd else hvd.Sum, name="op"),
        ),
        ("allreduce", lambda: hvd.allreduce(tf.ones(2), prescale_factor=1.0 + more, name="factor")),
        ("allreduce", lambda: slices_of(tf.ones([1, 2 + more]))),
        (
            "grouped_allreduce",
            lambda: hvd.grouped_allreduce([tf.ones(2)] * (1 + more), name="group"),
        ),
        (
            "grouped_allreduce",
            lambda: hvd.grouped_allreduce([tf.ones(2), tf.ones(2, kind)], name="g2"),
        ),
        ("allgather", lambda: hvd.allgather(tf.ones([2, 3 + more]), name="rows")),
        ("allgather", lambda: hvd.allgather(tf.ones([2, 3], kind), name="rows2")),
        (
            "grouped_allgather",
            lambda: hvd.grouped_allgather([tf.ones([2, 3 + more])], name="grows"),
        ),
        ("broadcast", lambda: hvd.broadcast(tf.ones(2), root, name="root")),
        ("broadcast", lambda: hvd.broadcast(tf.ones(2 + more), 0, name="wide")),
        ("broadcast_", lambda: hvd.broadcast_([make_variable(ones[0])], 0, name="variable")),
        ("broadcast_", lambda: hvd.broadcast_([make_variable(ones[1])], 0, name="variable2")),
        ("alltoall", lambda: hvd.alltoall(tf.ones([4, 2 + more]), name="columns")),
        ("alltoall", lambda: hvd.alltoall(tf.ones([4, 2], kind), name="columns2")),
        ("reducescatter", lambda: hvd.reducescatter(tf.ones([4 + more, 2]), name="scatter")),
        (
            "reducescatter",
            lambda: hvd.reducescatter(tf.ones([4]), postscale_factor=1.0 + more, name="s2"),
        ),
        ("grouped_reducescatter", lambda: hvd.grouped_reducescatter([tf.ones([4 + more])])),
    ]


def slices_of(values: Any) -> Any:
    return hvd.allreduce(tf.IndexedSlices(values, tf.zeros(1, tf.int32)), name="slices").values


def misuses() -> Wrong:
    """Calls that are wrong on every rank alike."""
    size = hvd.size()
    nobody = size + 5
    return [
        ("allreduce", lambda: hvd.allreduce(tf.constant([True]), op=hvd.Average, name="flags")),
        ("grouped_allreduce", lambda: hvd.grouped_allreduce([tf.constant([True])], name="flags")),
        ("allreduce", lambda: hvd.allreduce(tf.ones(2, tf.complex64), op=hvd.Max, name="complex")),
        (
            "allgather",
            lambda: hvd.allgather(
                tf.raw_ops.PlaceholderWithDefault(input=1.0, shape=None), name="scalar"
            ),
        ),
        ("broadcast", lambda: hvd.broadcast(tf.ones(2), nobody, name="nobody")),
        ("broadcast_", lambda: hvd.broadcast_([make_variable([1.0])], nobody, name="nobody")),
        ("alltoall", lambda: hvd.alltoall(tf.ones([size + 1, 2]), [1] * size, name="splits")),
        ("alltoall", lambda: hvd.alltoall(tf.ones([3, 2]), [1] * (size + 1), name="many")),
        ("alltoall", lambda: hvd.alltoall(tf.ones([3, 2]), [-1] * size, name="negative")),
        ("reducescatter", lambda: hvd.reducescatter(tf.ones([4]), op=hvd.Max, name="max")),
        ("grouped_reducescatter", lambda: hvd.grouped_reducescatter([tf.ones([4])], op=hvd.Min)),
        ("size_op", lambda: hvd.size_op(77)),
    ]


@on_ranks(2, 4)
@pytest.mark.parametrize("mode", MODES)
def test_mismatches_are_failed_preconditions_on_every_rank(world: Any, mode: str) -> None:
    for _, make in mismatches():
        with pytest.raises(tf.errors.FailedPreconditionError):
            in_mode(mode, make)
    check_works()


@on_ranks(1, 2, 4)
@pytest.mark.parametrize("mode", MODES)
def test_misuse_is_an_invalid_argument_on_every_rank(world: Any, mode: str) -> None:
    for _, make in misuses():
        with pytest.raises(tf.errors.InvalidArgumentError):
            in_mode(mode, make)
    if hvd.size() > 1:  # one rank takes any number of rows
        with pytest.raises(tf.errors.InvalidArgumentError):
            in_mode(mode, lambda: hvd.alltoall(tf.ones([hvd.size() + 1, 2]), name="uneven"))
    table = tf.IndexedSlices(tf.ones([1, 2]), tf.zeros(1, tf.int32))
    for options in ({"op": hvd.Max}, {"op": hvd.Adasum}, {"prescale_factor": 2.0}):
        with pytest.raises(NotImplementedError):
            in_mode(mode, lambda options=options: hvd.allreduce(table, **options).values)
    unknown = hvd.ProcessSet([0])
    for name in ("allreduce", "allgather", "alltoall", "reducescatter"):
        with pytest.raises(ValueError, match="not registered"):
            getattr(hvd, name)(tf.ones(4), process_set=unknown)
    assert hvd.grouped_allreduce([]) == hvd.grouped_allgather([]) == []
    assert hvd.grouped_reducescatter([]) == hvd.broadcast_([], 0) == []
    check_works()


@on_ranks(4)
def test_process_sets(world: Any) -> None:
    rank = hvd.rank()
    odd = hvd.add_process_set([1, 3])
    if rank in (1, 3):

        def make() -> list[Any]:
            return [
                hvd.allreduce(tf.constant([rank]), op=hvd.Sum, process_set=odd, name="odd"),
                hvd.broadcast(tf.constant([rank]), 3, process_set=odd, name="root"),
                hvd.size_op(odd.process_set_id),
            ]

        for total, root, size in every_mode(make):
            assert (int(total[0]), int(root[0]), int(size)) == (4, 3, 2)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError):
            hvd.allreduce(tf.ones(1), process_set=odd)
    check_works()
    assert hvd.remove_process_set(odd)
