"""Ops in graphs: each trap that a collective can fall into, with the way out."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tf_stage import MODES, check_works, hvd, in_mode, keras, on_ranks, tf

from kadril.engine import engine_of
from kadril.world import current

NUM_OPS = 12

seen: list[int] = []


def num_cycles() -> int:
    """Number of cycles in which ranks have negotiated so far."""
    return int(engine_of(current()).everyone.native.num_cycles)


@on_ranks(2)
@pytest.mark.parametrize("mode", ["function", "graph"])
def test_all_are_in_flight_at_once_in_any_order(world: Any, mode: str) -> None:
    """Ranks make the ops in opposite orders, each fed by the one before on one rank only."""
    rank = hvd.rank()
    order = range(NUM_OPS) if rank else range(NUM_OPS - 1, -1, -1)

    def make() -> list[Any]:
        values = {
            i: hvd.allreduce(tf.fill([2], float(i)), op=hvd.Sum, name=f"op{i}") for i in order
        }
        return [values[i] for i in range(NUM_OPS)]

    found = in_mode(mode, make)
    assert [each.tolist() for each in found] == [[2.0 * i] * 2 for i in range(NUM_OPS)]


@on_ranks(2)
@pytest.mark.parametrize("mode", ["function", "graph"])
def test_twelve_of_twelve_are_under_way(world: Any, mode: str) -> None:
    """The other rank comes late: all requests of this one are known to be waiting by then."""
    if hvd.rank() == 1:
        hvd.allreduce(tf.ones(1), name="the first has asked for all")
    watcher = threading.Thread(target=wait_for_all)
    if hvd.rank() == 0:
        watcher.start()

    def make() -> list[Any]:
        return [
            hvd.allreduce(tf.fill([2], float(i)), op=hvd.Sum, name=f"op{i}") for i in range(NUM_OPS)
        ]

    in_mode(mode, make)
    if hvd.rank() == 0:
        watcher.join()
        assert seen.pop() == NUM_OPS


def wait_for_all() -> None:
    """Let the other rank go as soon as all requests of this one are under way at once."""
    deadline = time.monotonic() + 60
    most = 0
    while most < NUM_OPS and time.monotonic() < deadline:
        most = max(most, engine_of(current()).everyone.native.num_in_flight)
        time.sleep(0.001)
    seen.append(most)
    hvd.allreduce(tf.ones(1), name="the first has asked for all")


@on_ranks(2)
@pytest.mark.parametrize("mode", ["function", "graph"])
def test_constants_are_not_folded_and_equal_ops_not_merged(world: Any, mode: str) -> None:
    """Ranks have different constants; each call moves them anew; two equal ops are two requests."""
    rank = hvd.rank()

    def make() -> list[Any]:
        x = tf.constant([float(rank + 1)])
        return [hvd.allreduce(x, op=hvd.Sum, name="a"), hvd.allreduce(x, op=hvd.Sum, name="b")]

    if mode == "graph":
        with tf.Graph().as_default():
            made = make()
            with tf.compat.v1.Session() as session:
                before = num_cycles()
                for _ in range(3):
                    assert [each.tolist() for each in session.run(made)] == [[3.0], [3.0]]
    else:
        function = tf.function(make)
        function()
        before = num_cycles()
        for _ in range(3):
            assert [each.numpy().tolist() for each in function()] == [[3.0], [3.0]]
    assert num_cycles() >= before + 3


@on_ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_inputs_that_others_use_stay_as_they_are(world: Any, mode: str) -> None:
    """A tensor of nobody else's is reduced in its own memory; one that is read again is not."""
    rank = float(hvd.rank())

    def make() -> list[Any]:
        own = tf.fill([5], rank + 1.0)
        shared = tf.fill([5], rank + 2.0)
        variable = tf.compat.v1.Variable(tf.fill([5], rank)) if mode == "graph" else state
        sums = [
            hvd.allreduce(own + 1.0, op=hvd.Sum, name="own"),
            hvd.allreduce(shared, op=hvd.Sum, name="shared"),
            hvd.allreduce(variable, op=hvd.Sum, name="variable"),
            hvd.broadcast(shared, 1, name="broadcast"),
            *hvd.grouped_allreduce([shared, shared], op=hvd.Sum, name="twice"),
        ]
        with tf.control_dependencies(sums):
            return [*sums, tf.identity(own), tf.identity(shared), variable.read_value()]

    state = tf.Variable(tf.fill([5], rank))
    found = [each.tolist() for each in in_mode(mode, make)]
    expected = [5.0, 5.0, 1.0, 3.0, 5.0, 5.0, rank + 1, rank + 2, rank]
    assert found == [[each] * 5 for each in expected]


@on_ranks(2)
def test_what_nobody_uses(world: Any) -> None:
    """Pruned on all ranks alike; barriers and assignments run all the same."""
    variable = tf.Variable([float(hvd.rank())])

    @tf.function
    def run(x: Any) -> Any:
        hvd.allreduce(x, name="unused")
        hvd.barrier()
        hvd.broadcast_([variable], root_rank=1)
        return x + 1

    assert run(tf.ones(2)).numpy().tolist() == [2, 2]
    assert variable.numpy().tolist() == [1.0]
    check_works()


@on_ranks(2)
def test_loops_conditions_and_nested_functions(world: Any) -> None:
    rank, size = hvd.rank(), hvd.size()

    @tf.function
    def inner(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    @tf.function
    def run(x: Any) -> Any:
        total = tf.zeros_like(x)
        for i in tf.range(20):  # iterations do not depend on each other's results
            total += hvd.allreduce(x * tf.cast(i, x.dtype), op=hvd.Sum, name="in a loop")
        if tf.reduce_sum(x) > -1:
            total += inner(x)
        return total

    found = run(tf.fill([2], float(rank + 1)))
    row = size * (size + 1) / 2
    assert found.numpy().tolist() == [row * 190 + row] * 2


@on_ranks(2)
def test_a_rank_that_traced_once_more_has_the_same_names(world: Any) -> None:
    @tf.function
    def reduce(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(x * 2, op=hvd.Sum, name="doubled")

    if hvd.rank() == 0:
        reduce.get_concrete_function(tf.TensorSpec([7], tf.float32))
        reduce.get_concrete_function(tf.TensorSpec([9], tf.float64))
    assert reduce(tf.ones(2)).numpy().tolist() == [6, 6]


@on_ranks(2)
def test_eager_ops_of_two_threads_do_not_collide(world: Any) -> None:
    results: dict[str, Any] = {}

    def work(name: str) -> None:
        for _ in range(20):
            results[name] = hvd.allreduce(tf.ones(2), op=hvd.Sum, name=name).numpy().tolist()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"one": [2, 2], "two": [2, 2]}


@on_ranks(2)
def test_jit_compile_around_a_collective_is_an_error(world: Any) -> None:
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)):
        tf.function(hvd.allreduce, jit_compile=True)(tf.ones(2))
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="jit_compile=False"):
        model.compile(optimizer, "mse", jit_compile=True)
    check_works()


@on_ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_fails_cancels_its_other_ops(world: Any, mode: str) -> None:
    """One op fails on all ranks; the other one, which only rank 0 has asked for, does not wait."""
    if mode == "eager":
        return
    rank = hvd.rank()

    def make() -> Any:
        bad = hvd.allreduce(tf.ones([2 + rank]), name="bad")
        # On rank 1 it is asked for only after the first has failed.
        fed = tf.ones(2) if rank == 0 else tf.ones(2) + bad[:2]
        return [bad, hvd.allreduce(fed, op=hvd.Sum, name="other")]

    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError):
            in_mode(mode, make)
    fresh = hvd.allreduce(tf.fill([2], 5.0 + rank), op=hvd.Sum, name="other")
    assert fresh.numpy().tolist() == [11, 11]
    check_works()


@on_ranks(4)
@pytest.mark.parametrize("mode", ["function", "graph"])
@pytest.mark.parametrize("has_begun", [True, False])
@pytest.mark.parametrize("num_failing", [1, 3])
def test_a_step_that_failed_on_some_ranks_is_not_served_with_its_next(
    world: Any, num_failing: int, has_begun: bool, mode: str
) -> None:
    """The last rank came late to an op whose step had failed on rank 0, and got the next step's.

    Rank 0 may have begun that op, or has not: then it withdraws nothing. What it has begun may be
    served before the others hear that it is withdrawn: all are served with this step's, then. And
    where it failed on several ranks, they withdrew one op at the same time: that ended the engine.
    """
    is_failing, is_late = hvd.rank() < num_failing, hvd.rank() == hvd.size() - 1
    passing = threading.Thread(target=world.transport.barrier)
    if not is_failing and not is_late:
        passing.start()
    hold = world.transport.barrier if is_late else None
    try:
        served = two_sums(1.0, mode, has_begun, fails=is_failing, hold=hold)
    except tf.errors.InvalidArgumentError:
        assert is_failing
    except tf.errors.FailedPreconditionError as error:
        assert re.search("rank [0-2] has withdrawn", str(error))  # noqa: PT017 - or none is raised
    else:
        assert has_begun
        assert not is_failing
        assert served == expected_sums(1.0)
    if is_failing:
        passing.start()
    assert two_sums(10.0, mode, has_begun) == expected_sums(10.0)
    if not is_late:
        passing.join()
    check_works()


def two_sums(
    number: float,
    mode: str,
    has_begun: bool,
    *,
    fails: bool = False,
    hold: Callable[[], None] | None = None,
) -> list[list[float]]:
    """Add up `number`, and `number` times the rank from 1, in one step.

    Args:
        number: what to add up.
        mode: how the step is run.
        has_begun: whether the second sum may begin before the step can fail.
        fails: whether the step fails after the first sum.
        hold: called before the second sum.
    """

    def gate(x: Any) -> Any:
        assert hold
        hold()
        return x

    def make() -> list[Any]:
        first = hvd.allreduce(tf.fill([2], number), op=hvd.Sum, name="first")
        fed = tf.fill([2], number * (hvd.rank() + 1.0))
        if hold:
            fed = tf.ensure_shape(tf.numpy_function(gate, [fed + 0 * first], tf.float32), [2])
        check = tf.debugging.Assert(first[0] < (-1.0 if fails else 1e9), [first])
        with tf.control_dependencies([] if has_begun else [check]):
            fed = tf.identity(fed)
        second = hvd.allreduce(fed, op=hvd.Sum, name="second")
        with tf.control_dependencies([check]):
            return [tf.identity(first), tf.identity(second)]

    return [each.tolist() for each in in_mode(mode, make)]


def expected_sums(number: float) -> list[list[float]]:
    """Return what `two_sums` does."""
    size = hvd.size()
    return [[number * size] * 2, [number * size * (size + 1) / 2] * 2]


@on_ranks(2)
def test_the_same_name_twice_at_once_is_refused(world: Any) -> None:
    def make() -> list[Any]:
        lib = hvd.ops.collectives.LIBRARY
        return [
            lib.horovod_allreduce(tensor=tf.fill([2], 1.0 * i), reduce_op=1, tensor_name="same")
            for i in range(8)
        ]

    # Of whoever comes second it is told that the other one's step has failed.
    kinds = (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)
    with pytest.raises(kinds, match=r"in use|has withdrawn"):
        in_mode("function", make)
    world.transport.barrier()  # before that, a peer that has gone would be what a rank is told of
    hvd.shutdown()
    hvd.init()
    check_works()
