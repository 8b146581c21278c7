"""Gradients of every operation of the table, first and second, in every mode; exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tf_cases import CASES, COMPLEX, FLOATS, OpCall, inputs, product_back
from tf_stage import MODES, check_works, hvd, in_mode, on_ranks, quick_and_long, tf

DTYPES = [*FLOATS, *COMPLEX]


def gradients(case: OpCall, x: Any, name: str, weight: float) -> list[Any]:
    """First and second gradients of the inputs.

    The first ones are those of `weight` times the result, and of half the square of the result;
    the second one is of `weight` times the latter. In eager mode and in graphs alike.
    """
    if case.again is None:
        return [weighted(case, x, name, weight)]
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = case.run(x, f"{name}.square")
        first = tape.gradient(y, x, output_gradients=y)
    second = outer.gradient(first, x, output_gradients=tf.ones_like(first) * weight)
    return [weighted(case, x, name, weight), first, second]


def weighted(case: OpCall, x: Any, name: str, weight: float) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = case.run(x, name)
    return tape.gradient(y, x, output_gradients=tf.ones_like(y) * weight)


def expected_gradients(case: OpCall, size: int) -> list[list[Any]]:
    """The same by numpy, of all ranks."""
    assert case.back
    xs = [each.astype(float) for each in inputs(case, size)]
    ys = case.forward(xs)
    weights = [np.full_like(y, rank + 1) for rank, y in enumerate(ys)]
    first = case.back(xs, weights)
    if case.again is None:
        return [first]
    halves = [np.full_like(x, rank + 1) for rank, x in enumerate(xs)]
    return [first, case.back(xs, ys), case.back(xs, case.again(xs, halves))]


@on_ranks(1, 2, 4)
@quick_and_long(DTYPES)
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_every_gradient(world: Any, mode: str, dtypes: list[str]) -> None:
    check_every_gradient(mode, dtypes)


@on_ranks(2)
@quick_and_long(DTYPES)
def test_every_gradient_in_a_function(world: Any, dtypes: list[str]) -> None:
    check_every_gradient("function", dtypes)


# Long, since tracing takes seconds of each rank, what is traced is what a graph holds, and graphs
# have all of these sizes above.
@pytest.mark.long
@on_ranks(1, 4)
@quick_and_long(DTYPES)
def test_every_gradient_in_a_function_of_one_and_of_four(world: Any, dtypes: list[str]) -> None:
    check_every_gradient("function", dtypes)


def check_every_gradient(mode: str, dtypes: list[str]) -> None:
    """One graph, or one function, with the gradients of every operation on all these dtypes."""
    rank, size = hvd.rank(), hvd.size()
    found = in_mode(mode, lambda: [make(case, dtype) for case, dtype in differentiable(dtypes)])

    for (case, dtype), results in zip(differentiable(dtypes), found, strict=True):
        for order, (result, expected) in enumerate(
            zip(results, expected_gradients(case, size), strict=True)
        ):
            what = f"gradient {order} of {case.op} {case.label} {dtype}"
            assert result.dtype == tf.as_dtype(dtype).as_numpy_dtype, what
            values = np.asarray(result).astype(np.complex128)
            np.testing.assert_array_equal(values, expected[rank], what)


def differentiable(dtypes: list[str]) -> list[tuple[OpCall, str]]:
    cases = [case for case in CASES if case.back]
    return [(case, dtype) for case in cases for dtype in dtypes if dtype in case.dtypes]


def make(case: OpCall, dtype: str) -> list[Any]:
    x = tf.cast(inputs(case, hvd.size())[hvd.rank()], dtype)
    weight = tf.cast(hvd.rank() + 1, dtype)
    return gradients(case, x, f"{case.op}.{case.label}.{dtype}", weight)


@on_ranks(1, 2, 4)
@pytest.mark.parametrize("mode", MODES)
def test_products_are_differentiated_twice(world: Any, mode: str) -> None:
    """The derivative of the other ranks' product, which a rank's own factor is part of."""
    (case,) = [each for each in CASES if each.back is product_back]
    rank, size = hvd.rank(), hvd.size()
    xs = [each.astype(float) for each in inputs(case, size)]

    def second() -> list[Any]:
        results = []
        for dtype in DTYPES:
            x = tf.cast(xs[rank], dtype)
            with tf.GradientTape() as outer:
                outer.watch(x)
                first = weighted(case, x, f"product.{dtype}", tf.cast(rank + 1, dtype))
            made = outer.gradient(first, x)
            results.append(tf.zeros_like(x) if made is None else made)
        return results

    total = size * (size + 1) / 2
    expected = np.zeros_like(xs[0])
    for other in range(size):
        if other != rank:
            rest = [x for index, x in enumerate(xs) if index not in (rank, other)]
            expected += total * np.prod(rest, axis=0)
    for result in in_mode(mode, second):
        np.testing.assert_array_equal(np.asarray(result).astype(np.complex128), expected)


@on_ranks(1, 2, 4)
@pytest.mark.parametrize("mode", MODES)
def test_adasum_has_no_gradient_and_says_so(world: Any, mode: str) -> None:
    def reduce() -> Any:
        x = tf.ones(3)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, op=hvd.Adasum, name="adasum")
        return tape.gradient(y, x)

    with pytest.raises((NotImplementedError, LookupError), match="Adasum"):
        in_mode(mode, reduce)
    check_works()
