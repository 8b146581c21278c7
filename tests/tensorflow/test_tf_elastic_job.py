"""An elastic job of TensorFlow: a rank is killed, and the result is that of a quiet run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
import tensorflow as tf
import kadril.tensorflow as hvd

hvd.init()
weights = tf.Variable([0.0, 0.0])
state = hvd.elastic.TensorFlowState(variables=[weights], step=0)

@tf.function
def sum_of(pull):
    return hvd.allreduce(pull, op=hvd.Sum, name="pull")

@hvd.elastic.run
def train(state):
    while state.step < 9:
        pull = tf.constant([state.step + 1.0, float(hvd.rank())])
        weights.assign_sub(0.125 * sum_of(pull))
        state.step += 1
        first = os.environ["KADRIL_GENERATION"] == "0" and "quiet" not in sys.argv
        if first and state.step == 5 and hvd.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.step % 3 == 0:
            state.commit()

train(state)
print(f"rank {hvd.rank()} of {hvd.size()}: {weights.numpy().tolist()}")
"""


@pytest.mark.long
def test_a_killed_rank_changes_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    launch = [sys.executable, "-m", "kadril", "run", "-np", "2", "--min-np", "1", "--no-prefix"]
    lines = []
    for words in (["quiet"], []):
        done = subprocess.run(
            [*launch, str(script), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        assert done.returncode == 0, done.stderr
        lines.append(sorted(done.stdout.splitlines()))
    values = [-0.125 * 2 * sum(range(1, 10)), -0.125 * 9]
    assert lines[0] == lines[1] == [f"rank {rank} of 2: {values}" for rank in range(2)]
