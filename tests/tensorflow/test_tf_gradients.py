"""Gradients of the operations, first and second, in eager mode, functions and TF1 graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tf_stage import MODES, every_mode, hvd, in_mode, on_ranks, tf


def gradient(target: Any, source: Any, weights: Any) -> Any:
    """The gradient of sum(weights * target(source)), in a graph as in eager mode."""
    if tf.executing_eagerly():
        with tf.GradientTape() as tape:
            tape.watch(source)
            loss = tf.reduce_sum(weights * target(source))
        return tape.gradient(loss, source)
    return tf.gradients(tf.reduce_sum(weights * target(source)), source)[0]


@on_ranks(1, 2, 4)
@pytest.mark.parametrize("mode", MODES)
def test_first_gradients(world: Any, mode: str) -> None:
    rank, size = hvd.rank(), hvd.size()
    row = size * (size + 1) // 2

    def make() -> list[Any]:
        x = tf.reshape(tf.range(size * 2.0), [size, 2]) + float(rank + 1)
        mine = float(rank + 1)
        ragged = x[: rank + 1]
        return [
            gradient(lambda t: hvd.allreduce(t, op=hvd.Sum, name="sum"), x, mine),
            gradient(lambda t: hvd.allreduce(t, name="mean"), x, mine),
            gradient(lambda t: hvd.allreduce(t, op=hvd.Max, name="max"), x, mine),
            gradient(lambda t: hvd.allreduce(t, op=hvd.Product, name="product"), x, mine),
            gradient(lambda t: hvd.allgather(t, name="gather"), ragged, mine),
            gradient(lambda t: hvd.broadcast(t, size - 1, name="broadcast"), x, mine),
            gradient(lambda t: hvd.alltoall(t, [1] * size, name="alltoall")[0], x, mine),
            gradient(lambda t: hvd.reducescatter(t, op=hvd.Sum, name="scatter"), x, mine),
            gradient(lambda t: hvd.grouped_allreduce([t, t], op=hvd.Sum, name="group")[1], x, mine),
        ]

    sums, mean, most, product, gather, broadcast, alltoall, scatter, group = in_mode(mode, make)
    values = np.arange(size * 2.0).reshape(size, 2)
    others = np.prod([values + r + 1 for r in range(size) if r != rank], axis=0)
    assert (sums == row).all()
    assert (mean == row / size).all()
    assert (most == (row if rank == size - 1 else 0)).all()
    np.testing.assert_array_equal(product, row * others * np.ones_like(values))
    assert gather.shape == (rank + 1, 2)
    assert (gather == row / size).all()
    assert (broadcast == (row / size if rank == size - 1 else 0)).all()
    np.testing.assert_array_equal(alltoall, np.repeat(np.arange(size)[:, None] + 1.0, 2, axis=1))
    np.testing.assert_array_equal(
        scatter, np.repeat(np.arange(size)[:, None] + 1.0, 2, axis=1) * size
    )
    assert (group == row).all()


@on_ranks(2)
def test_second_gradients(world: Any) -> None:
    """Gradient of |dJ/dx|^2: what a penalty on gradients needs."""
    rank, size = hvd.rank(), hvd.size()

    def make() -> list[Any]:
        x = tf.fill([size, 2], float(rank + 1))
        results = []
        for name, op in (
            ("sum", lambda t: hvd.allreduce(t, op=hvd.Sum, name="sum")),
            ("gather", lambda t: hvd.allgather(t, name="gather")),
            ("scatter", lambda t: hvd.reducescatter(t, name="scatter")),
        ):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    loss = tf.reduce_sum(op(x * x) ** 2)
                first = inner.gradient(loss, x)
                penalty = tf.reduce_sum(first)
            results.append(outer.gradient(penalty, x))
            del name
        return results

    for found in (in_mode("eager", make), in_mode("function", make)):
        for each in found:
            assert each.shape == (size, 2)
            assert np.isfinite(each).all()
            assert (each != 0).all()
    # By hand, for the sum: y = sum_s x_s^2, first_r = 4 x_r sum_s y = 8 x_r (x_0^2 + x_1^2) with
    # gradients added over ranks; its own derivative adds both ranks' penalties.
    total = 1.0 + 4.0
    expected = 8 * total + 16 * (rank + 1) * sum(r + 1 for r in range(size))
    assert (in_mode("eager", make)[0] == expected).all()


@on_ranks(2)
def test_adasum_has_no_gradient_and_says_so(world: Any) -> None:
    x = tf.ones(3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="Adasum"):
        tape.gradient(y, x)
    assert len(list(every_mode(lambda: hvd.allreduce(tf.ones(1), name="next")))) == 3
