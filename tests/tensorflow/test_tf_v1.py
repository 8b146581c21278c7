"""TF1 graphs: optimizers of `tf.compat.v1.train`, hooks, sessions that save and restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_stage import hvd, on_ranks, tf


def data(rank: int) -> tuple[Any, Any]:
    x = (np.arange(12.0).reshape(4, 3) + rank) % 3 - 1
    return x.astype(np.float32), ((np.arange(4) + rank) % 2).astype(np.float32)[:, None]


def train(batch: tuple[Any, Any], wrap: Any, steps: int = 3, *, has_references: bool = True) -> Any:
    """Weights after some steps of a TF1 optimizer in a graph of its own."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        weights = v1.get_variable(
            "weights",
            [3, 1],
            initializer=v1.ones_initializer(),
            use_resource=not has_references,
        )
        bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer(), use_resource=True)
        error = tf.matmul(tf.constant(batch[0]), weights) + bias - tf.constant(batch[1])
        loss = tf.reduce_mean(tf.square(error))
        step = wrap(v1.train.GradientDescentOptimizer(0.25)).minimize(loss)
        with v1.train.SingularMonitoredSession() as session:
            for _ in range(steps):
                session.run(step)
            return session.raw_session().run([weights, bias])


def whole() -> tuple[Any, Any]:
    parts = [data(rank) for rank in range(hvd.size())]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


@on_ranks(2, 4)
def test_a_v1_optimizer_steps_as_with_the_whole_batch(world: Any) -> None:
    expected = train(whole(), lambda optimizer: optimizer)
    found = train(data(hvd.rank()), hvd.DistributedOptimizer)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    grouped = train(data(hvd.rank()), lambda each: hvd.DistributedOptimizer(each, groups=1))
    np.testing.assert_array_equal(grouped[0], expected[0])


@on_ranks(2)
def test_backward_passes_and_adasum(world: Any) -> None:
    """Two passes with the same batch are one step with it; Adasum of equal ways is that way."""
    expected = train(whole(), lambda optimizer: optimizer, steps=2)
    found = train(
        data(hvd.rank()),
        lambda each: hvd.DistributedOptimizer(
            each, backward_passes_per_step=2, average_aggregated_gradients=True
        ),
        steps=4,
        has_references=False,  # which conditions of version 2 cannot assign to
    )
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    alone = train(data(0), lambda optimizer: optimizer)
    adasum = train(
        data(0), lambda each: hvd.DistributedOptimizer(each, op=hvd.Adasum), has_references=False
    )
    for mine, theirs in zip(adasum, alone, strict=True):
        # A start, minus and plus the same way: one rounding each.
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@on_ranks(2)
def test_the_hook_gives_all_the_start_of_the_root(world: Any, tmp_path: Path) -> None:
    v1 = tf.compat.v1

    def run(directory: str | None, num_steps: int) -> tuple[int, float]:
        with tf.Graph().as_default():
            value = v1.get_variable("value", initializer=10.0 * (hvd.rank() + 1))
            count = v1.train.get_or_create_global_step()
            step = tf.group(v1.assign_add(value, 1.0), v1.assign_add(count, 1))
            hooks = [hvd.BroadcastGlobalVariablesHook(0)]
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=directory, hooks=hooks, log_step_count_steps=0
            ) as session:
                for _ in range(num_steps):
                    session.run(step)
                return tuple(session.run([count, value]))

    directory = str(tmp_path) if hvd.rank() == 0 else None
    assert run(directory, 3) == (3, 13.0)
    assert run(directory, 2) == (5, 15.0)  # rank 0 goes on, and so do the others


@on_ranks(2)
def test_objects_and_variables_in_a_session(world: Any) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        value = v1.get_variable("value", initializer=1.0 + hvd.rank())
        session.run(v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(1))
        assert session.run(value) == 2.0
        send = hvd.broadcast_object_fn(root_rank=1, session=session)
        for number in range(3):
            assert send([number + hvd.rank()]) == [number + 1]
        assert hvd.allgather_object(hvd.rank(), session=session) == [0, 1]
        state = hvd.elastic.TensorFlowState(session=session, epoch=hvd.rank())
        state.sync()
        assert state.epoch == 0
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="session"):
        hvd.broadcast_object([1])
