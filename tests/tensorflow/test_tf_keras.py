"""`kadril.tensorflow.keras` and `kadril.keras`: callbacks, loading, ops of arrays; by `fit`.

Data and weights are small whole numbers and factors powers of two, so that sums are exact and
results are compared with `==`. The first tests use callbacks of Keras 3 in both Keras; tf_keras by
itself, and Keras on torch, need processes of their own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import runpy
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_stage import LazyModule, check_works, keras, on_ranks, tf

hvd: Any = LazyModule("kadril.tensorflow.keras")
EXAMPLES = Path(__file__).parents[2] / "examples"
FAMILIES = pytest.mark.parametrize("module", ["keras", "tf_keras"])

X = np.array([[1, 0], [0, 1], [1, 1], [-1, 1]], np.float32)
Y = np.array([[1], [0], [1], [0]], np.float32)


def make_model(module: Any, weight: float = 1.0) -> Any:
    model = module.Sequential([module.layers.Input((2,)), module.layers.Dense(1)])
    model.set_weights([np.full((2, 1), weight), np.zeros(1)])
    return model


def fit(model: Any, *callbacks: Any, epochs: int = 1, batch_size: int = 4, **options: Any) -> Any:
    options.setdefault("verbose", 0)
    return model.fit(
        X, Y, batch_size=batch_size, epochs=epochs, shuffle=False, callbacks=callbacks, **options
    )


def load(name: str) -> Any:
    return importlib.import_module(name)


@contextlib.contextmanager
def keras_saves() -> Iterator[None]:
    """Keras hands its variables to numpy in a way that numpy 2 warns about, when it saves some."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


@on_ranks(2)
@FAMILIES
def test_all_begin_with_the_root_s_weights_and_optimizer(world: Any, module: str) -> None:
    """After one step of equal data ranks have what the root alone would have: exact at once."""
    kit = load(module)
    alone = make_model(kit, 2.0)
    alone.compile(kit.optimizers.SGD(0.5, momentum=0.5), "mse")
    fit(alone, epochs=2)
    model = make_model(kit, 1.0 + hvd.rank())
    optimizer = hvd.DistributedOptimizer(kit.optimizers.SGD(0.25 + 0.25 * hvd.rank(), momentum=0.5))
    model.compile(optimizer, "mse")
    fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(1), epochs=2)
    for found, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        assert found.tolist() == expected.tolist()
    assert float(np.asarray(optimizer.learning_rate)) == 0.5


@on_ranks(2)
@FAMILIES
def test_local_variables_are_not_broadcast(world: Any, module: str) -> None:
    """Horovod's suite has it: the first layer stays each rank's, the rest is the root's."""
    kit = load(module)
    model = kit.Sequential([kit.layers.Input((2,)), kit.layers.Dense(2), kit.layers.Dense(2)])
    model.set_weights([np.full(each.shape, hvd.rank()) for each in model.get_weights()])
    model.compile(kit.optimizers.SGD(0.0), "mse")
    local = model.layers[0].variables
    begin = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=local)
    begin.register_local_var(model.layers[1].bias)
    model.fit(X, X, verbose=0, callbacks=[begin])
    values = [float(each.ravel()[0]) for each in model.get_weights()]
    assert values == [hvd.rank(), hvd.rank(), 1.0, hvd.rank()]
    with pytest.raises(ValueError, match="not int"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[3])


@on_ranks(2)
@pytest.mark.parametrize("kind", ["keras", "tf_keras", "legacy"])
def test_an_optimizer_keeps_the_state_that_it_had(world: Any, kind: str) -> None:
    """Wrapping kept only the configuration of a Keras 2 optimizer, and dropped its velocities."""
    kit = load("keras" if kind == "keras" else "tf_keras")
    optimizers = kit.optimizers.legacy if kind == "legacy" else kit.optimizers
    alone, model = make_model(kit), make_model(kit)
    for each in (alone, model):
        each.compile(optimizers.SGD(0.25, momentum=0.5), "mse")
        fit(each, epochs=2)
    stepped = model.optimizer
    model.compile(hvd.DistributedOptimizer(stepped), "mse")
    assert int(np.asarray(model.optimizer.iterations)) == 2
    for each in (alone, model):
        fit(each)
    for found, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        assert found.tolist() == expected.tolist()
    assert int(np.asarray(model.optimizer.iterations)) == 3
    with pytest.raises(ValueError, match="SGD is distributed already"):
        hvd.DistributedOptimizer(model.optimizer)
    if kind != "keras":
        other = hvd.DistributedOptimizer(stepped)
        with pytest.raises(ValueError, match=r"other variables.*\(2, 1\).*\(3,\)"):
            other.apply_gradients([(tf.ones(3), tf.Variable(tf.ones(3)))])
    check_works()


@on_ranks(2)
def test_legacy_optimizers_and_models_that_are_not_built(world: Any) -> None:
    kit = load("tf_keras")
    model = make_model(kit, 1.0 + hvd.rank())
    model.compile(hvd.DistributedOptimizer(kit.optimizers.legacy.SGD(0.5, momentum=0.5)), "mse")
    warm = hvd.callbacks.LearningRateScheduleCallback(0.5, lambda epoch: 1 + epoch)
    fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0), warm, epochs=2)
    weights = hvd.allgather(model.get_weights()[0][None])
    assert weights[0].tolist() == weights[1].tolist()
    late = kit.Sequential([kit.layers.Dense(1)])
    late.compile(hvd.DistributedOptimizer(kit.optimizers.SGD(0.5)), "mse")
    with pytest.warns(UserWarning, match="not built"):
        fit(late, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    weights = hvd.allgather(late.get_weights()[0][None])
    assert weights[0].tolist() == weights[1].tolist()


@on_ranks(2)
@FAMILIES
def test_metrics_are_averaged_for_callbacks_and_history(world: Any, module: str) -> None:
    kit = load(module)
    model = make_model(kit, 2.0 * hvd.rank())
    model.compile(kit.optimizers.SGD(0.0), "mse")
    losses = [model.evaluate(X, Y, verbose=0)]
    both = hvd.allgather(np.array(losses, np.float64))
    assert both[0] != both[1]
    seen: list[float] = []
    after = kit.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: seen.append(logs["loss"]))
    history = fit(model, hvd.callbacks.MetricAverageCallback(), after)
    assert history.history["loss"] == seen == [both.mean()]
    # Only one rank validates: an error on both, and the next operation works.
    data = (X, Y) if hvd.rank() == 0 else None
    with pytest.raises(ValueError, match=r"rank 0 has \['loss', 'val_loss'\], rank 1 has"):
        fit(model, hvd.callbacks.MetricAverageCallback(), validation_data=data)
    check_works()


@on_ranks(2)
@FAMILIES
def test_warmup_and_schedule(world: Any, module: str) -> None:
    """Rates of each batch; of two ranks the warmup is from half the rate to the whole."""
    kit = load(module)
    model = make_model(kit)
    model.compile(kit.optimizers.SGD(1.0), "mse")
    rates: list[float] = []

    def note(*_: Any, **__: Any) -> None:
        rates.append(float(np.asarray(model.optimizer.learning_rate)))

    watch = kit.callbacks.LambdaCallback(on_batch_begin=note)
    warm = hvd.callbacks.LearningRateWarmupCallback(1.0, warmup_epochs=2, verbose=1)
    down = hvd.callbacks.LearningRateScheduleCallback(1.0, 0.5, start_epoch=2)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        history = fit(model, warm, down, watch, epochs=4, batch_size=2)
    assert rates == [0.625, 0.75, 0.875, 1.0, 0.25, 0.25, 0.125, 0.125]
    assert history.history["lr"] == [0.75, 1.0, 0.25, 0.125]
    text = "\nEpoch 2: finished gradual learning rate warmup to 1.\n"
    assert output.getvalue() == (text if hvd.rank() == 0 else "")
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.5)
    schedule = kit.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model.compile(kit.optimizers.SGD(schedule), "mse")
    with pytest.raises(TypeError, match=r"LearningRateWarmupCallback.*ExponentialDecay"):
        fit(model, hvd.callbacks.LearningRateWarmupCallback(0.1))
    unknown = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).take_while(lambda *_: True)
    model.compile(kit.optimizers.SGD(0.5), "mse")
    warm = hvd.callbacks.LearningRateWarmupCallback(0.5)
    with pytest.raises(ValueError, match="steps_per_epoch"):
        model.fit(unknown, callbacks=[warm], shuffle=False, verbose=0)


@on_ranks(2)
@FAMILIES
@pytest.mark.parametrize("corrects", [True, False])
def test_momentum_is_corrected(world: Any, module: str, corrects: bool) -> None:
    """The recurrence of the paper: v' = m * new/old * v - new * g, in powers of two."""
    kit = load(module)
    model = make_model(kit)
    model.compile(kit.optimizers.SGD(0.5, momentum=0.5), "mse")
    halved = hvd.callbacks.LearningRateScheduleCallback(0.5, 0.5, momentum_correction=corrects)
    fit(model, halved, epochs=3)
    weights = np.array([1.0, 1.0, 0.0])  # and the bias
    inputs = np.concatenate([X, np.ones((4, 1))], axis=1)
    velocity, before = np.zeros(3), 0.5
    for epoch in range(3):
        rate = 0.5 * 0.5**epoch
        gradient = 2 * inputs.T @ (inputs @ weights - Y[:, 0]) / 4
        momentum = 0.5 * (rate / before if corrects else 1.0)
        velocity = momentum * velocity - rate * gradient
        weights, before = weights + velocity, rate
    found = np.concatenate([each.ravel() for each in model.get_weights()])
    assert found.tolist() == weights.tolist()


@on_ranks(2)
def test_the_best_model_is_saved_once_and_loads_distributed(world: Any, tmp_path: Path) -> None:
    """Rank 0 writes; every rank loads what has the optimizer's state, and steps with all ranks."""
    path = str(tmp_path / "best.keras")
    model = make_model(keras)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.25)), "mse")
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    with pytest.raises(ValueError, match="filepath"):
        fit(model, best)
    best.filepath = path
    with keras_saves():
        fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0), best)
    hvd.allreduce(0)  # the file is there
    plain = keras.models.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam
    loaded = hvd.load_model(path, compression=hvd.Compression.none)
    values = [each.numpy().tolist() for each in loaded.optimizer.variables]
    assert values == [each.numpy().tolist() for each in model.optimizer.variables]
    own = X * (1 + hvd.rank())
    loaded.train_on_batch(own, Y)
    weights = hvd.allgather(loaded.get_weights()[0][None])
    assert weights[0].tolist() == weights[1].tolist()
    plain.train_on_batch(own, Y)  # by itself: ranks part ways
    weights = hvd.allgather(plain.get_weights()[0][None])
    assert weights[0].tolist() != weights[1].tolist()


@on_ranks(2)
def test_a_model_of_an_h5_file_trains_on(world: Any, tmp_path: Path) -> None:
    """Keras 3 builds its optimizer without variables, and the first step was refused."""
    path = str(tmp_path / f"{hvd.rank()}.h5")
    model = make_model(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.25, momentum=0.5))
    model.compile(optimizer, keras.losses.MeanSquaredError())
    fit(model)
    with keras_saves():
        model.save(path)
    with pytest.warns(UserWarning, match=r"\.keras file keeps it"):
        loaded = hvd.load_model(path)
    assert int(loaded.optimizer.iterations) == 1
    loaded.train_on_batch(X * (1 + hvd.rank()), Y)
    weights = hvd.allgather(loaded.get_weights()[0][None])
    assert weights[0].tolist() == weights[1].tolist() != model.get_weights()[0].tolist()


@on_ranks(2)
def test_arrays(world: Any) -> None:
    rank = hvd.rank()
    assert hvd.allreduce([1.0 + rank, 2.0]).tolist() == [1.5, 2.0]
    assert hvd.allreduce(np.int64(rank + 1), op=hvd.Sum, name="sum") == 3
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.allreduce([1.0], average=False).tolist() == [2.0]
    assert hvd.allgather(np.full((rank + 1, 2), rank)).tolist() == [[0, 0], [1, 1], [1, 1]]
    assert hvd.broadcast([rank], 1).tolist() == [1]
    assert hvd.reducescatter([[1.0], [2.0 + rank]]).tolist() == [[[1.0]], [[2.5]]][rank]
    with pytest.raises(RuntimeError, match="eager"):
        hvd.broadcast_global_variables(0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=float(rank))
        session.run(variable.initializer)
        hvd.broadcast_global_variables(1)
        assert session.run(variable) == 1.0
        assert hvd.allreduce(2.0, op=hvd.Sum) == 4.0
    with pytest.raises(ValueError, match="only supports Average and Sum"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Max)


@on_ranks(2)
def test_elastic_callbacks_and_the_progress_bar(world: Any) -> None:
    model = make_model(keras)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=5)
    batches: list[int] = []
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
        keras.callbacks.LambdaCallback(on_batch_end=lambda *_, **__: batches.append(state.batch)),
    ]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        fit(model, *callbacks, epochs=2, batch_size=2, verbose="auto")
    assert ("Epoch 2/2" in output.getvalue()) == (hvd.rank() == 0)
    assert batches == [0, 1, 0, 1]
    assert (state.batch, state.epoch) == (0, 7)
    committed = model.get_weights()
    model.set_weights([each + 1 for each in committed])
    state.epoch = 9
    state.restore()
    assert state.epoch == 7
    assert [each.tolist() for each in model.get_weights()] == [each.tolist() for each in committed]


@on_ranks(2)
def test_the_example(world: Any) -> None:
    """`kadril.keras` on TensorFlow, with all callbacks; ranks other than 0 say nothing."""
    output = io.StringIO()
    before, sys.argv = sys.argv, ["keras_callbacks.py", "--epochs", "5"]
    try:
        with contextlib.redirect_stdout(output), keras_saves():
            runpy.run_path(str(EXAMPLES / "keras_callbacks.py"), run_name="__main__")
    finally:
        sys.argv = before
    if hvd.rank() == 0:
        found = re.search(
            r"2 ranks: the best model has loss .*, ([\d.]+)% right\n", output.getvalue()
        )
        assert found, output.getvalue()[-500:]
        assert float(found[1]) > 85
    else:
        assert output.getvalue() == ""


SCRIPT = """
    import sys
    import numpy as np
    import KERAS as keras
    import MODULE as hvd

    X, Y = np.eye(2, dtype=np.float32), np.ones((2, 1), np.float32)
    if "torch" in sys.modules:
        assert keras.backend.backend() == "torch" and "tensorflow" not in sys.modules
    hvd.init()
    assert hvd.size() == 2
    rank = hvd.rank()
    path = sys.argv[1]

    def make(weight):
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.set_weights([np.full((2, 1), weight), np.zeros(1)])
        return model

    alone = make(2.0)
    alone.compile(keras.optimizers.SGD(0.5, momentum=0.5), "mse")
    alone.fit(np.concatenate([X, 2 * X]), np.concatenate([Y, Y]), batch_size=4, epochs=3,
              shuffle=False, verbose=0)
    model = make(2.0 + rank)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.5)), "mse")
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=path)
    history = model.fit((1 + rank) * X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateScheduleCallback(0.5, lambda epoch: 1.0),
            best,
        ])
    assert hvd.broadcast(history.history["loss"], 0).tolist() == history.history["loss"]
    # The rest of it with the model as it was saved, whose optimizer has its velocities.
    model.save(path) if rank == 0 else None
    hvd.allreduce([0.0])
    loaded = hvd.load_model(path)
    loaded.fit((1 + rank) * X, Y, batch_size=2, epochs=1, shuffle=False, verbose=0)
    for mine, theirs in zip(loaded.get_weights(), alone.get_weights()):
        assert mine.tolist() == theirs.tolist(), (mine, theirs)
    EXTRA
    hvd.shutdown()
    print("right", rank)
"""

# Horovod's modules, and the internals that scripts touch.
OF_HOROVOD = """
    import horovod.tensorflow as tensorflow_hvd
    import kadril.tensorflow as own
    from horovod.tensorflow import mpi_ops
    from horovod.tensorflow.compression import Compression
    from horovod.tensorflow.functions import broadcast_object, broadcast_object_fn
    from horovod.tensorflow.mpi_ops import _allreduce, _grouped_allreduce, _reducescatter, size_op
    from horovod.tensorflow.util import _executing_eagerly, vars_to_refs
    from horovod.runner.common.util.env import get_env_rank_and_size
    assert mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0, 1]}
    assert tensorflow_hvd.util._executing_eagerly() and _executing_eagerly()
    assert tensorflow_hvd._executing_eagerly()
    assert all(getattr(tensorflow_hvd, name) is getattr(own, name) for name in own.__all__)
    assert get_env_rank_and_size() == (rank, 2) and Compression is tensorflow_hvd.Compression
    assert mpi_ops.handle_average_backwards_compatibility(None, None) == hvd.Average
    assert tensorflow_hvd.elastic.TensorFlowState and mpi_ops.check_num_rank_power_of_2(4)
    assert _allreduce([1.0], "named", hvd.Max, 2.0).numpy().tolist() == [2.0]
    assert _grouped_allreduce([[1.0]])[0].numpy().tolist() == [2.0]
    assert _reducescatter([1.0, 2.0]).numpy().tolist() == [2.0 + 2.0 * rank]
    assert mpi_ops._grouped_reducescatter([[1.0, 2.0]])[0].numpy().tolist() == [2.0 + 2.0 * rank]
    assert mpi_ops._normalize_name("a/b:0") == "a_b_0"
    said = "ProcessSet(process_set_id=0, ranks=[0, 1], mpi_comm=None)"
    assert str(tensorflow_hvd.global_process_set) == said, str(tensorflow_hvd.global_process_set)
"""

ON_TORCH = """
    scaled = make(3.0)
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), backward_passes_per_step=2)
    scaled.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0), "mse")
    for bad in (np.float32("inf"), 1.0):  # of rank 1 only, in the first of two steps of two passes
        for _ in range(2):
            scaled.train_on_batch(X * (bad if rank else 1), Y)
    weights = hvd.allgather(scaled.get_weights()[0][None])
    assert weights[0].tolist() == weights[1].tolist() != [[3.0], [3.0]], weights
    assert int(inner.iterations.numpy()) == 1
    met_again = hvd.elastic.KerasState(scaled)
    scaled.train_on_batch(X, Y)
    met_again.on_reset()  # a rank that comes new has not made that pass
    scaled.train_on_batch(X, Y)
    assert int(inner.iterations.numpy()) == 1
    scaled.train_on_batch(X, Y)
    assert int(inner.iterations.numpy()) == 2
    layer = keras.layers.Dense(1)
    layer.build((2,))
    partial = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.5), local_layers=layer)
    kernel, bias = layer.trainable_variables
    kernel.assign(np.zeros((2, 1)))
    partial.build([kernel, bias])
    ones = kernel.value.detach() * 0 + 2.0 * (1 + rank)
    partial.apply([ones, None], [kernel, bias])
    assert kernel.numpy().tolist() == [[-0.5 * (1 + rank)]] * 2
    for wrong in (
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), groups=2),
        lambda: hvd.DistributedOptimizer(model.optimizer),
        lambda: make(1.0).compile(model.optimizer, "mse", jit_compile=True),
    ):
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError(wrong)
    try:
        model.optimizer.stateless_apply([], [], [])
    except NotImplementedError:
        pass
    state = hvd.elastic.KerasState(loaded, epoch=rank)
    state.sync()
    assert state.epoch == 0
    state.epoch = 3
    loaded.set_weights([each * 0 for each in loaded.get_weights()])
    state.restore()
    assert state.epoch == 0
    assert loaded.get_weights()[0].tolist() == alone.get_weights()[0].tolist()
    assert hvd.reducescatter([[1.0], [2.0 + rank]]).tolist() == [[[1.0]], [[2.5]]][rank]
"""


@pytest.mark.parametrize(
    ("kit", "module", "variable", "extra"),
    [
        ("tf_keras", "horovod.tensorflow.keras", "TF_USE_LEGACY_KERAS=1", OF_HOROVOD),
        ("keras", "kadril.keras", "KERAS_BACKEND=torch", ON_TORCH),
    ],
)
def test_other_kinds_of_keras(
    tmp_path: Path, kit: str, module: str, variable: str, extra: str
) -> None:
    """Two ranks with half the batch each train as one with all of it, over a saved model."""
    text = textwrap.dedent(SCRIPT).replace("EXTRA", textwrap.dedent(extra))
    script = tmp_path / "script.py"
    script.write_text(text.replace("KERAS", kit).replace("MODULE", module))
    name, value = variable.split("=")
    launch = [sys.executable, "-m", "kadril", "run", "-np", "2", "--compat", "horovod"]
    done = subprocess.run(
        [*launch, "--no-prefix", "--", sys.executable, str(script), str(tmp_path / "a.keras")],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(done.stdout.split()) == ["0", "1", "right", "right"], done.stdout


def test_other_backends_are_refused_by_name(tmp_path: Path) -> None:
    """A Keras that says that it runs on JAX, which is not installed here, stands in for one."""
    stand_in = "class backend:\n    backend = staticmethod(lambda: 'jax')\n"
    (tmp_path / "keras.py").write_text(stand_in)
    done = subprocess.run(
        [sys.executable, "-c", "import kadril.keras"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert "backends tensorflow and torch, and this is jax" in done.stderr, done.stderr[-2000:]
