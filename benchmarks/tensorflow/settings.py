"""The ways to take a training step, and to add up small tensors, in TensorFlow."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import kadril.tensorflow as hvd
from kadril.world import World

__all__ = ["NUM_SMALL", "join_strategy", "make_call"]

WIDTH, BATCH, NUM_SMALL = 2048, 32, 20


def join_strategy(world: World) -> Any:
    """MultiWorkerMirroredStrategy between the ranks of a world, over ports of this host.

    Before anything else of TensorFlow: it starts a server in each process.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = np.array([probe.getsockname()[1]], dtype=np.int64)
    ports = np.zeros(world.size, dtype=np.int64)
    world.transport.allgatherv(port, ports, [1] * world.size)
    workers = [f"127.0.0.1:{each}" for each in ports]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": world.rank}}
    )
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def make_call(workload: str, setting: str, strategy: Any) -> Callable[[], object]:
    """One call of a workload, by a setting."""
    if workload == "20 small all-reduces":
        return small_reductions()
    if workload == "Keras step":
        return keras_step(is_distributed=setting == "kadril")
    return loop_step(setting, strategy)


def batch() -> tuple[np.ndarray, np.ndarray]:
    """A batch of this rank."""
    random = np.random.default_rng(hvd.rank())
    x = random.normal(size=(BATCH, 784)).astype(np.float32)
    return x, random.integers(0, 10, BATCH).astype(np.int32)


def keras_step(*, is_distributed: bool) -> Callable[[], object]:
    """A step of `train_on_batch` of a perceptron of 10 million parameters."""
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.layers.Input((784,)), *layers, keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(0.01)
    if is_distributed:
        optimizer = hvd.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    x, y = batch()
    return lambda: model.train_on_batch(x, y)


def loop_step(setting: str, strategy: Any) -> Callable[[], object]:
    """The same step by plain variables in a `tf.function`."""
    sizes = (784, WIDTH, WIDTH, WIDTH, 10)
    random = np.random.default_rng(0)
    variables = []
    for rows, columns in itertools.pairwise(sizes):
        weights = random.normal(0, rows**-0.5, (rows, columns)).astype(np.float32)
        variables.append((tf.Variable(weights), tf.Variable(tf.zeros(columns))))
    flat = [each for pair in variables for each in pair]
    x, y = map(tf.constant, batch())

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            hidden = x
            for index, (weights, bias) in enumerate(variables):
                hidden = hidden @ weights + bias
                if index < len(variables) - 1:
                    hidden = tf.nn.relu(hidden)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=hidden)
            )
        if setting == "kadril":
            tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, flat)
        if setting == "MultiWorkerMirroredStrategy":
            context = tf.distribute.get_replica_context()
            grads = context.all_reduce(tf.distribute.ReduceOp.MEAN, grads)
        for variable, grad in zip(flat, grads, strict=True):
            variable.assign_sub(0.01 * grad)
        return loss

    if setting == "MultiWorkerMirroredStrategy":
        return tf.function(lambda: strategy.run(step))
    return tf.function(step)


def small_reductions() -> Callable[[], object]:
    """Twenty tensors of one float in one function."""
    values = [tf.Variable([float(i)]) for i in range(NUM_SMALL)]

    @tf.function
    def run() -> list[tf.Tensor]:
        return [hvd.allreduce(v, op=hvd.Sum, name=f"small.{i}") for i, v in enumerate(values)]

    found = [float(each[0]) for each in run()]
    if found != [i * hvd.size() for i in range(NUM_SMALL)]:
        raise AssertionError(f"the sums are {found}")
    return run
