"""The examples of TensorFlow, as their first lines say to run them; and DDL's operators."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_stage import hvd, in_mode, on_ranks, tf

EXAMPLES = Path(__file__).parents[2] / "examples"


# Examples of TF1 graphs, one after the other: each of them by itself would load TensorFlow anew.
DRIVER = """
import runpy, sys
import tensorflow as tf

folder, checkpoints = sys.argv[1:]
for name, *arguments in (
    ("tensorflow1_monitored.py", "--steps", "40", "--checkpoint-dir", checkpoints),
    ("tensorflow1_monitored.py", "--steps", "80", "--checkpoint-dir", checkpoints),
    ("tensorflow_ddl_mnist.py", "--steps", "60"),
):
    sys.argv = [name, *arguments]
    runpy.run_path(f"{folder}/{name}", run_name="__main__")
    tf.reset_default_graph()
"""


def adagrad_alone(num_steps: int, num_ranks: int) -> float:
    """The loss before the last step of the same training in one process with the whole batch."""
    points = np.random.RandomState(0).uniform(-1, 1, (64, 3)).astype(np.float32)
    heights = points @ np.array([[2.0], [-3.0], [0.5]], np.float32) + 1.0
    inputs = np.concatenate([points, np.ones((64, 1), np.float32)], axis=1).astype(np.float64)
    weights = np.array([[1.0], [1.0], [1.0], [0.0]])
    sums = np.full((4, 1), 0.1)  # where TF1's Adagrad begins
    for _ in range(num_steps):
        error = inputs @ weights - heights
        gradient = 2 * inputs.T @ error / len(inputs)
        sums += gradient**2
        weights -= 0.01 * num_ranks * gradient / np.sqrt(sums)
    return float((error**2).mean())


def test_tf1_scripts_run_unmodified(tmp_path: Path) -> None:
    """The demo of Horovod, with checkpoints on rank 0: 40 steps, then as many more; and DDL's."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    words = ["-np", "2", "--no-prefix", "--compat", "horovod,tf1", "--", sys.executable]
    done = subprocess.run(
        [sys.executable, "-m", "kadril", "run", *words, script, EXAMPLES, tmp_path / "saved"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    found = [re.fullmatch(r"(from|to) step (\d+): loss (\S+)", line) for line in lines]
    losses = [(int(each[2]), float(each[3])) for each in found if each]
    # float32 against float64, a hundred roundings of numbers up to ten.
    assert [step for step, _ in losses[1::2]] == [40, 80]
    for steps, loss in losses[1::2]:
        assert loss == pytest.approx(adagrad_alone(steps, 2), abs=1e-4)
    assert losses[2][1] < losses[1][1]
    shares = [re.fullmatch(r"learner (\d) of 2, device (\d): ([\d.]+)% right", x) for x in lines]
    learners = sorted((each[1], each[2], each[3]) for each in shares if each)
    assert [each[:2] for each in learners] == [("0", "0"), ("1", "1")]
    assert learners[0][2] == learners[1][2]
    assert float(learners[0][2]) > 75


def run_example(name: str, *arguments: str) -> str:
    output = io.StringIO()
    before, sys.argv = sys.argv, [name, *arguments]
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        sys.argv = before
    return output.getvalue()


@on_ranks(2)
def test_a_loop_and_a_fit(world: Any) -> None:
    """Both run on ranks of the pool, which have loaded TensorFlow already."""
    said = run_example("tensorflow_loop.py")
    fitted = run_example("keras_fit.py", "--epochs", "5")
    if hvd.rank() == 0:
        assert said == "y = 3.0000 x + 1.0000, loss 0.00e+00\n" or "y = 3.00" in said
        share = float(re.search(r"([\d.]+)% right", fitted)[1])  # type: ignore[index]
        assert share > 90, fitted
    else:
        assert said == fitted == ""


@on_ranks(2)
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_the_operators_of_ddl(world: Any, mode: str) -> None:
    import kadril.tensorflow.ddl as ddl

    rank = hvd.rank()

    def make() -> list[Any]:
        x = tf.constant([1.0 + rank, -2.0])
        return [
            *ddl.init(2, mode="-mode n -dump_iter 100"),
            ddl.bcast(x, name="start"),
            ddl.all_reduce(x, name="sum", check=0.17),
            *ddl.all_reduce_n([x, 2 * x], "avg", check=1e-6, name="means"),
        ]

    found = [np.asarray(each).tolist() for each in in_mode(mode, make)]
    assert found == [rank, 2, rank, [1.0, -2.0], [3.0, -4.0], [1.5, -2.0], [3.0, -4.0]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="relative error"):
        in_mode(mode, lambda: ddl.all_reduce(tf.constant([float("nan")]), check=0.1, name="nan"))
    with pytest.raises(ValueError, match="mpi"):
        ddl.all_reduce(tf.ones(1), mpi=True)
    with pytest.raises(ValueError, match="op"):
        ddl.all_reduce(tf.ones(1), op="max")
