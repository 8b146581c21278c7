"""Every operation, in every mode, for every dtype that TensorFlow and the core share; exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tf_stage import MODES, check_works, every_mode, hvd, in_mode, on_ranks, tf

NAMES = "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64"
DTYPES = [*NAMES.split(), "complex64", "complex128"]


def values(dtype: str, rank: int, rows: int = 4) -> Any:
    """Small whole numbers that differ between ranks, and whose sums every dtype can hold."""
    return tf.cast(tf.reshape(tf.range(rows * 3) % 5 + rank, [rows, 3]), dtype)


def array(dtype: str, rank: int, rows: int = 4) -> Any:
    return (np.arange(rows * 3).reshape(rows, 3) % 5 + rank).astype(np.complex128)


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found).astype(np.complex128), expected)


@on_ranks(1, 2, 4)
@pytest.mark.parametrize("mode", MODES)
def test_every_dtype(world: Any, mode: str) -> None:
    """One graph, or one function, with every operation on every dtype."""
    rank, size = hvd.rank(), hvd.size()

    def make() -> list[Any]:
        results = []
        for dtype in DTYPES:
            mine = values(dtype, rank)
            splits = [4 // size] * size
            results += [
                hvd.allreduce(mine, op=hvd.Sum, name=f"sum.{dtype}"),
                hvd.allgather(values(dtype, rank, rank + 1), name=f"gather.{dtype}"),
                hvd.broadcast(mine, size - 1, name=f"broadcast.{dtype}"),
                hvd.alltoall(mine, splits, name=f"alltoall.{dtype}")[0],
                hvd.reducescatter(mine, op=hvd.Sum, name=f"scatter.{dtype}"),
            ]
        return results

    found = iter(in_mode(mode, make))
    for dtype in DTYPES:
        total = sum(array(dtype, each) for each in range(size))
        part = slice(4 // size * rank, 4 // size * (rank + 1))
        same(next(found), total)
        same(next(found), np.concatenate([array(dtype, r, r + 1) for r in range(size)]))
        same(next(found), array(dtype, size - 1))
        same(next(found), np.concatenate([array(dtype, r)[part] for r in range(size)]))
        same(next(found), total[part])
    flags = tf.constant([rank == 0, True, False])
    assert hvd.broadcast(flags, 0, name="flags").numpy().tolist() == [True, True, False]


@on_ranks(2, 4)
def test_reductions_and_factors(world: Any) -> None:
    rank, size = hvd.rank(), hvd.size()

    def make() -> list[Any]:
        mine = tf.constant([float(rank + 1), 8.0, -float(rank)])
        return [
            hvd.allreduce(mine, name="mean"),
            hvd.allreduce(mine, op=hvd.Min, name="min"),
            hvd.allreduce(mine, op=hvd.Max, name="max"),
            hvd.allreduce(mine, op=hvd.Product, name="product"),
            hvd.allreduce(
                mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, name="scaled"
            ),
            hvd.allreduce(mine, op=hvd.Adasum, name="adasum"),
            hvd.allreduce(tf.constant([1 + rank]), op=hvd.Average, name="whole"),
        ]

    ranks = np.arange(size)
    for mean, least, most, product, scaled, adasum, whole in every_mode(make):
        assert mean.tolist() == [(size + 1) / 2, 8, -(size - 1) / 2]
        assert least.tolist() == [1, 8, -(size - 1)]
        assert most.tolist() == [size, 8, 0]
        assert product.tolist() == [np.prod(ranks + 1), 8**size, 0]
        assert scaled.tolist() == [size * (size + 1), 16 * size, -size * (size - 1)]
        assert np.isfinite(adasum).all()
        assert whole.tolist() == [(size * (size + 1) // 2) // size]
    assert hvd.allreduce(tf.ones(2, tf.float64) / 3, compression=hvd.Compression.fp16).dtype == (
        tf.float64
    )


@on_ranks(2)
def test_factors_have_all_their_bits(world: Any) -> None:
    """They were floats of 32 bits, in which 30 * 0.7 is below 21, and became 20."""

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
def test_groups(world: Any) -> None:
    """Tensors of several dtypes in one request."""
    rank, size = hvd.rank(), hvd.size()

    def make() -> list[Any]:
        group = [tf.fill([size, 2], float(rank)), tf.fill([size], rank)]
        return [
            *hvd.grouped_allreduce(group, op=hvd.Sum, name="sums"),
            *hvd.grouped_allgather(group, name="all"),
            *hvd.grouped_reducescatter(group, op=hvd.Sum),
        ]

    total = sum(range(size))
    for found in every_mode(make):
        sums, gathered, parts = found[:2], found[2:4], found[4:]
        assert (sums[0] == total).all()
        assert (sums[1] == total).all()
        assert gathered[1].tolist() == [r for r in range(size) for _ in range(size)]
        assert gathered[0].shape == (size * size, 2)
        assert parts[0].tolist() == [[total, total]]
        assert parts[1].tolist() == [total]
    assert hvd.grouped_allreduce([]) == []


@on_ranks(2)
def test_slices_are_gathered(world: Any) -> None:
    rank = hvd.rank()

    def make() -> list[Any]:
        mine = tf.IndexedSlices(
            tf.constant([[1.0 + rank, 2.0]]), tf.constant([rank]), tf.constant([4, 2])
        )
        other = tf.IndexedSlices(tf.ones([rank + 1, 2]), tf.zeros(rank + 1, tf.int64), None)
        mean = hvd.allreduce(mine, name="mean")
        first, second = hvd.grouped_allreduce([mine, other], op=hvd.Sum, name="group")
        return [mean.values, mean.indices, first.values, second.values]

    for values_of_mean, indices, first, second in every_mode(make):
        assert values_of_mean.tolist() == [[0.5, 1], [1, 1]]
        assert indices.tolist() == [0, 1]
        assert first.tolist() == [[1, 2], [2, 2]]
        assert second.shape == (3, 2)
    with pytest.raises(NotImplementedError):
        hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), tf.zeros(1, tf.int32)), op=hvd.Max)


@on_ranks(2)
def test_facts_join_and_barrier(world: Any) -> None:
    def make() -> list[Any]:
        return [
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.process_set_included_op(),
            hvd.process_set_included_op(77),
        ]

    for found in every_mode(make):
        rank = hvd.rank()
        assert [int(each) for each in found] == [rank, 2, rank, 2, 1, -3]
    hvd.barrier()

    @tf.function
    def wait() -> None:
        hvd.barrier()

    wait()
    if hvd.rank() == 0:
        assert hvd.allreduce(tf.ones(2), op=hvd.Sum, name="alone").numpy().tolist() == [1, 1]
    last = hvd.join()
    assert int(last) in (0, 1)
    assert last.numpy() == hvd.broadcast(last, 0).numpy()
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


@on_ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_errors_are_tensorflow_s_on_every_rank(world: Any, mode: str) -> None:
    """A mismatch is a failed precondition, misuse an invalid argument; then the next op works."""
    rank = hvd.rank()
    mismatches = [
        lambda: hvd.allreduce(tf.ones([2 + rank]), name="shape"),
        lambda: hvd.allreduce(tf.cast(tf.ones(2), tf.int32 if rank else tf.int64), name="type"),
        lambda: hvd.allgather(tf.ones([2, 3 + rank]), name="rows"),
        lambda: hvd.broadcast(tf.ones(2), rank, name="root"),
        lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum if rank else hvd.Min, name="op"),
        lambda: hvd.reducescatter(tf.ones([2 + rank, 2]), name="scatter"),
        lambda: hvd.grouped_allreduce([tf.ones(2)] * (1 + rank), name="group"),
    ]
    for make in mismatches:
        with pytest.raises(tf.errors.FailedPreconditionError):
            in_mode(mode, make)
    misuses = [
        lambda: hvd.alltoall(tf.ones([3, 2]), name="uneven"),
        lambda: hvd.alltoall(tf.ones([3, 2]), [1, 1], name="splits"),
        lambda: hvd.alltoall(tf.ones([3, 2]), [3], name="few"),
        lambda: hvd.broadcast(tf.ones(2), 7, name="nobody"),
        lambda: hvd.allreduce(tf.constant([True]), op=hvd.Average, name="flags"),
    ]
    for make in misuses:
        with pytest.raises(tf.errors.InvalidArgumentError):
            in_mode(mode, make)
    check_works()
