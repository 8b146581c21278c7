"""Training on ranks gives what one process with the whole batch gives, by every kind of optimizer.

Data and weights are small whole numbers and factors powers of two, so that sums are exact and
results are compared with `==`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_stage import check_works, hvd, keras, on_ranks, tf

from kadril.errors import PeerLost

ROWS, COLUMNS, STEPS = 4, 3, 3


def data(rank: int, step: int = 0) -> tuple[Any, Any]:
    """This rank's batch."""
    x = (np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) + rank + step) % 3 - 1
    y = (np.arange(ROWS) + rank) % 2
    return x.astype(np.float32), y.astype(np.float32)[:, None]


def whole(step: int = 0) -> tuple[Any, Any]:
    """The batches of all ranks."""
    parts = [data(rank, step) for rank in range(hvd.size())]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def make_model(module: Any, seed: int = 0) -> Any:
    """A linear model with the same whole weights everywhere, or others with another seed."""
    model = module.Sequential([module.layers.Input((COLUMNS,)), module.layers.Dense(1)])
    weights = [np.full((COLUMNS, 1), 1.0 + seed), np.full((1,), 2.0 * seed)]
    model.set_weights(weights)
    return model


def alone(module: Any, optimizer: Any, steps: int = STEPS) -> list[Any]:
    """Weights after training in one process on the batches of all ranks."""
    model = make_model(module)
    model.compile(optimizer, "mse")
    for step in range(steps):
        model.train_on_batch(*whole(step))
    return model.get_weights()


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def keras_of(family: str) -> Any:
    if family == "keras":
        return keras
    import tf_keras

    return tf_keras


@on_ranks(2, 4)
@pytest.mark.parametrize("family", ["keras", "tf_keras"])
def test_fit_is_that_of_the_whole_batch(world: Any, family: str) -> None:
    module = keras_of(family)
    expected = alone(module, module.optimizers.SGD(0.25))
    optimizer = hvd.DistributedOptimizer(module.optimizers.SGD(0.25))
    model = make_model(module)
    model.compile(optimizer, "mse", run_eagerly=False)
    for step in range(STEPS):
        x, y = data(hvd.rank(), step)
        model.fit(x, y, batch_size=ROWS, epochs=1, verbose=0, shuffle=False)
    assert_same(model.get_weights(), expected)
    eager = make_model(module)
    eager.compile(hvd.DistributedOptimizer(module.optimizers.SGD(0.25)), "mse", run_eagerly=True)
    for step in range(STEPS):
        eager.train_on_batch(*data(hvd.rank(), step))
    assert_same(eager.get_weights(), expected)
    assert type(optimizer).__name__ == "SGD"
    assert isinstance(optimizer, module.optimizers.SGD)


@on_ranks(2)
def test_loops_of_one_s_own(world: Any) -> None:
    """`apply`, `apply_gradients` and a distributed tape, in a tf.function."""
    expected = alone(keras, keras.optimizers.SGD(0.25))
    for way in ("apply", "apply_gradients", "tape"):
        model = make_model(keras)
        optimizer = keras.optimizers.SGD(0.25)
        if way != "tape":
            optimizer = hvd.DistributedOptimizer(optimizer)
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(x: Any, y: Any, model: Any = model, way: str = way, opt: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            if way == "tape":
                tape = hvd.DistributedGradientTape(tape)
            grads = tape.gradient(loss, model.trainable_variables)
            if way == "apply":
                opt.apply(grads, model.trainable_variables)
            else:
                opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        for number in range(STEPS):
            x, y = data(hvd.rank(), number)
            step(tf.constant(x), tf.constant(y))
        assert_same(model.get_weights(), expected)


@on_ranks(2)
@pytest.mark.parametrize("family", ["keras", "tf_keras"])
def test_backward_passes_per_step(world: Any, family: str) -> None:
    """Two passes of half the rows make one step; the optimizer counts steps."""
    module = keras_of(family)
    expected = alone(module, module.optimizers.SGD(0.25))
    optimizer = hvd.DistributedOptimizer(
        module.optimizers.SGD(0.25), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    model = make_model(module)
    model.compile(optimizer, "mse")
    for step in range(STEPS):
        x, y = data(hvd.rank(), step)
        for half in (slice(0, 2), slice(2, 4)):
            model.train_on_batch(x[half], y[half])
    assert_same(model.get_weights(), expected)
    assert int(optimizer.iterations) == STEPS


@on_ranks(2)
@pytest.mark.parametrize("family", ["keras", "tf_keras"])
def test_passes_are_counted_anew_when_ranks_meet_again(world: Any, family: str) -> None:
    """Ranks that had made one pass of two reduced one pass before those that came new."""
    module = keras_of(family)
    optimizer = hvd.DistributedOptimizer(module.optimizers.SGD(0.25), backward_passes_per_step=2)
    model = make_model(module)
    model.compile(optimizer, "mse")
    state = hvd.elastic.TensorFlowKerasState(model)
    model.train_on_batch(*data(hvd.rank()))
    state.on_reset()
    for num_steps in (0, 1):
        model.train_on_batch(*data(hvd.rank()))
        assert int(optimizer.iterations) == num_steps


@on_ranks(2)
@pytest.mark.parametrize("order", ["inside", "outside", "compile"])
def test_mixed_precision_in_either_order(world: Any, order: str) -> None:
    """One rank has infinities: all skip that step, none waits, and the next ones are the same."""
    scaling = keras.optimizers.LossScaleOptimizer
    plain = keras.optimizers.SGD(0.25)
    model = make_model(keras)
    if order == "inside":
        optimizer = hvd.DistributedOptimizer(scaling(plain, initial_scale=8.0))
        expected = scaling(keras.optimizers.SGD(0.25), initial_scale=8.0)
    else:
        optimizer = hvd.DistributedOptimizer(plain)
        expected = scaling(keras.optimizers.SGD(0.25), initial_scale=8.0)
        if order == "outside":
            optimizer = scaling(optimizer, initial_scale=8.0)
    if order == "compile":
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = make_model(keras)
            model.compile(optimizer, "mse")
        finally:
            keras.config.set_dtype_policy("float32")
        assert isinstance(model.optimizer, scaling)
    else:
        model.compile(optimizer, "mse")
    for step in range(STEPS):
        model.train_on_batch(*data(hvd.rank(), step))
    if order != "compile":
        assert_same(model.get_weights(), alone(keras, expected))
    before = [each.copy() for each in model.get_weights()]
    x, y = data(hvd.rank())
    model.train_on_batch(np.where(hvd.rank() == 1, np.float32(np.inf), x), y)
    assert_same(model.get_weights(), before)
    model.train_on_batch(x, y)
    mine = np.concatenate([each.ravel() for each in model.get_weights()])
    both = hvd.allgather(mine[None]).numpy()
    np.testing.assert_array_equal(both[0], both[1])
    assert (mine != np.concatenate([each.ravel() for each in before])).any()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
@on_ranks(2)
def test_saved_models_are_plain(world: Any, tmp_path: Path) -> None:
    """A saved model says SGD, loads without kadril, and keeps its state."""
    model = make_model(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.25, momentum=0.5))
    model.compile(optimizer, keras.losses.MeanSquaredError())
    model.train_on_batch(*data(hvd.rank()))
    path = tmp_path / f"{hvd.rank()}.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.SGD
    assert int(loaded.optimizer.iterations) == 1
    again = hvd.DistributedOptimizer(loaded.optimizer)
    for mine, theirs in zip(again.variables, optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


@on_ranks(2)
def test_sparse_gradients_groups_and_compression(world: Any) -> None:
    """An embedding's slices; all gradients in one request; gradients as float16 on the way."""
    tokens = np.array([[hvd.rank(), 2]])
    target = np.ones((1, 1), np.float32)
    weights = []
    for options in (
        {},
        {"sparse_as_dense": True},
        {"groups": 1},
        {"compression": hvd.Compression.fp16},
        {"gradient_predivide_factor": 2.0},
    ):
        model = keras.Sequential(
            [
                keras.layers.Input((2,), dtype="int32"),
                keras.layers.Embedding(4, 2, embeddings_initializer="ones"),
                keras.layers.Flatten(),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.125), **options), "mse")
        model.train_on_batch(tokens, target)
        weights.append(np.concatenate([each.ravel() for each in model.get_weights()]))
    for other in weights[1:]:
        np.testing.assert_array_equal(weights[0], other)
    both = hvd.allgather(weights[0][None]).numpy()
    np.testing.assert_array_equal(both[0], both[1])


@on_ranks(2)
def test_local_variables_stay_local(world: Any) -> None:
    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)]
    )
    model.set_weights([np.ones_like(each) for each in model.get_weights()])
    x, y = data(hvd.rank())
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    plain = tf.GradientTape()
    with plain:
        again = tf.reduce_mean((model(x) - y) ** 2)
    expected = plain.gradient(again, model.layers[0].trainable_variables)
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=model.layers[0])
    found = tape.gradient(loss, model.trainable_variables)
    for mine, theirs in zip(found[:2], expected, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs) / 2)
    everywhere = hvd.allgather(found[2][None]).numpy()
    np.testing.assert_array_equal(everywhere[0], everywhere[1])
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.5), local_layers=model.layers[:1], scale_local_gradients=False
    )
    optimizer.apply(
        [tf.ones_like(v) * float(hvd.rank()) for v in model.trainable_variables],
        model.trainable_variables,
    )
    assert float(model.layers[0].bias[0]) == 1 - 0.5 * hvd.rank()
    assert float(model.layers[1].bias[0]) == 1 - 0.25
    with pytest.raises(ValueError, match="layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[3])


@on_ranks(2)
def test_the_same_start(world: Any) -> None:
    """Variables of TensorFlow, Keras and an optimizer; objects; a rank that has others is told."""
    model = make_model(keras, seed=hvd.rank())
    optimizer = keras.optimizers.Adam(0.5)
    optimizer.build(model.trainable_variables)
    plain = tf.Variable([1.0 + hvd.rank()])
    hvd.broadcast_variables([*model.variables, *optimizer.variables, plain], root_rank=1)
    assert_same(model.get_weights(), make_model(keras, seed=1).get_weights())
    assert plain.numpy().tolist() == [2.0]
    assert hvd.broadcast_object({"epoch": hvd.rank()}, root_rank=1) == {"epoch": 1}
    assert hvd.broadcast_object_fn(root_rank=1)([hvd.rank()]) == [1]
    assert hvd.allgather_object("ab"[: hvd.rank() + 1]) == ["a", "ab"]
    with pytest.raises(tf.errors.FailedPreconditionError):
        hvd.broadcast_variables([tf.Variable(tf.ones(2 + hvd.rank()))], root_rank=0)
    check_works()


@on_ranks(2)
def test_batch_norm_of_uneven_batches(world: Any) -> None:
    """Outputs, gradients and moving statistics are those of the whole batch."""
    rows = [3, 1]
    everything = (np.arange(8.0, dtype=np.float32).reshape(4, 2) % 5).astype(np.float32)
    start = sum(rows[: hvd.rank()])
    mine = tf.constant(everything[start : start + rows[hvd.rank()]])

    def run(layer: Any, x: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(y**3)
        return y.numpy(), tape.gradient(loss, x).numpy()

    layer = hvd.SyncBatchNormalization()
    y, gradient = run(layer, mine)
    single = keras.layers.BatchNormalization()
    all_y, all_gradient = run(single, tf.constant(everything))
    part = slice(start, start + rows[hvd.rank()])
    # Sums of four numbers in another order, of values up to ten: a few units of the last place.
    np.testing.assert_allclose(y, all_y[part], atol=1e-5)
    np.testing.assert_allclose(gradient, all_gradient[part], atol=1e-4)
    np.testing.assert_allclose(layer.moving_mean, single.moving_mean, atol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, single.moving_variance, atol=1e-6)


@on_ranks(2)
def test_misuse(world: Any) -> None:
    with pytest.raises(ValueError, match="Provided optimizer"):
        hvd.DistributedOptimizer(object())
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="groups"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), groups=0)
    with pytest.raises(ValueError, match="Adasum"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Adasum)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD()))
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


@on_ranks(2)
def test_elastic_states(world: Any) -> None:
    """Saved, restored, and taken over from rank 0, with the optimizer."""
    model = make_model(keras, seed=hvd.rank())
    model.compile(keras.optimizers.SGD(0.25, momentum=0.5), "mse")
    state = hvd.elastic.TensorFlowKerasState(model, epoch=hvd.rank())
    state.sync()
    assert state.epoch == 0
    assert_same(model.get_weights(), make_model(keras).get_weights())
    model.train_on_batch(*data(0))
    state.epoch = 5
    state.restore()
    assert state.epoch == 0
    assert_same(model.get_weights(), make_model(keras).get_weights())
    assert int(model.optimizer.iterations) == 0
    variable = tf.Variable(1.0 + hvd.rank())
    plain = hvd.elastic.TensorFlowState(variables=[variable], batch=3)
    plain.sync()
    variable.assign(9.0)
    plain.restore()
    assert float(variable) == 1.0

    @hvd.elastic.run
    def train(state: Any) -> int:
        return int(state.batch)

    assert train(plain) == 3


@on_ranks(2)
def test_gradients_meet_those_of_the_same_variables(world: Any) -> None:
    """Gradients went under one name where another was None, whichever variables they were of."""
    from kadril.tensorflow.gradient_reduction import GradientReducer, ReductionOptions

    reducer = GradientReducer("gaps", ReductionOptions(op=hvd.Sum))
    variables = [tf.Variable(0.0) for _ in range(3)]
    own = [tf.constant(float(10**index * (1 + hvd.rank()))) for index in range(3)]

    def reduce_without(index: int) -> list[Any]:
        grads = [None if place == index else grad for place, grad in enumerate(own)]
        return reducer.reduce(grads, variables)

    order = [0, 2] if hvd.rank() == 0 else [2, 0]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(reduce_without, order)
    results = {order[0]: first, order[1]: second}
    assert [float(each) for each in results[0][1:]] == [30.0, 300.0]
    assert [float(each) for each in results[2][:2]] == [3.0, 30.0]
    assert results[0][0] is None
    assert results[2][2] is None


@on_ranks(2)
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
def test_a_model_with_synchronized_batches_loads_as_it_was(world: Any, tmp_path: Path) -> None:
    """The layer was saved under a name that Keras did not look for."""
    import kadril.keras

    layers = [keras.layers.Input((COLUMNS,)), hvd.SyncBatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.25)), "mse")
    path = tmp_path / f"{hvd.rank()}.keras"
    model.save(path)
    loaded = kadril.keras.load_model(path)
    assert type(loaded.layers[0]) is hvd.SyncBatchNormalization
    assert type(keras.models.load_model(path).layers[0]) is hvd.SyncBatchNormalization


@on_ranks(2)
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_elastic_training_goes_on_after_a_step_that_lost_a_rank(world: Any, mode: str) -> None:
    """Whatever its ops are called: those of `tf.function` were not known by their names."""
    variable = tf.Variable([1.0])

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = 3.0 * variable
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, variable)

    run_step = tf.function(step) if mode == "function" else step
    state = hvd.elastic.TensorFlowState(variables=[variable], runs=0)
    started = []

    @hvd.elastic.run
    def train(state: Any) -> Any:
        started.append(state.runs)
        first = run_step()
        if len(started) == 1 and hvd.rank() == 1:
            raise PeerLost("this rank leaves, and meets the other one again", rank=0)
        return first, run_step()

    results = train(state)
    assert len(started) == 2
    assert_same([each.numpy() for each in results], [[6.0], [6.0]])
