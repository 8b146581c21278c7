"""Elastic jobs of TensorFlow: ranks fail in some way, and the result is that of a quiet run."""

from __future__ import annotations

import os
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

@tf.function
def fail_alone():
    tf.debugging.assert_equal(hvd.rank(), 0)
    return hvd.allreduce(tf.zeros(2), op=hvd.Sum, name="pull")

@hvd.elastic.run
def train(state):
    while state.step < 9:
        first = os.environ["KADRIL_GENERATION"] == "0"
        fault = sys.argv[1] if first and state.step == 5 else ""
        if fault == "alone":
            fail_alone()
        if fault in ("kill", "stop") and hvd.rank() == 0:
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault])
        size = 2 + hvd.rank() if fault == "mismatch" else 2
        pull = tf.constant([state.step + 1.0, float(hvd.rank()), 0.0][:size])
        total = sum_of(pull)
        weights.assign_sub(0.125 * total)
        state.step += 1
        if state.step % 3 == 0:
            state.commit()

def reduce_early():
    hvd.broadcast_object(0, name="early")
    if (sys.argv[1], hvd.rank(), os.environ["KADRIL_GENERATION"]) == ("reset", 1, "1"):
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.broadcast_object(0, name="late")

if "reset" in sys.argv:
    state.register_reset_callbacks([reduce_early])
    state.on_hosts_updated(1.0, hvd.elastic.HostUpdateResult.removed)
train(state)
print(f"rank {hvd.rank()} of {hvd.size()}: {weights.numpy().tolist()}")
"""

WHOLE = [-0.125 * 2 * sum(range(1, 10)), -0.125 * 9]


def job(directory: Path, fault: str, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    script = directory / "train.py"
    script.write_text(PROGRAM)
    launch = [sys.executable, "-m", "kadril", "run", "--no-prefix", *flags]
    return subprocess.run(
        [*launch, str(script), fault],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env={**os.environ, **env},
    )


def check_end(done: subprocess.CompletedProcess[str], size: int, weights: list[float]) -> None:
    assert done.returncode == 0, done.stderr
    ends = [f"rank {rank} of {size}: {weights}" for rank in range(size)]
    assert sorted(done.stdout.splitlines()) == ends


@pytest.mark.long
@pytest.mark.parametrize("fault", ["quiet", "kill", "alone"])
def test_a_rank_that_fails_changes_nothing(tmp_path: Path, fault: str) -> None:
    """A step may fail by itself: the other rank is told of a step that was withdrawn."""
    done = job(tmp_path, fault, "-np", "2", "--min-np", "1")
    check_end(done, 2, WHOLE)


@pytest.mark.long
@pytest.mark.parametrize("ops", ["native", "python"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_stopped_rank_is_replaced(tmp_path: Path, ops: str, transport: str) -> None:
    """The rank was lost on the way through TensorFlow: the launcher never heard whom to end."""
    names = {"KADRIL_TENSORFLOW_OPS": ops, "KADRIL_TRANSPORT": transport}
    done = job(tmp_path, "stop", "-np", "2", "--min-np", "2", "--patience", "3", **names)
    check_end(done, 2, WHOLE)


@pytest.mark.long
@pytest.mark.parametrize("ops", ["native", "python"])
def test_a_mismatch_ends_the_job(tmp_path: Path, ops: str) -> None:
    """TensorFlow tells of it by a class of its own, and ranks that failed by it were replaced."""
    done = job(tmp_path, "mismatch", "-np", "2", "--min-np", "1", KADRIL_TENSORFLOW_OPS=ops)
    assert done.returncode == 1
    assert "the program cannot go on: MismatchError" in done.stderr
    assert "generation 1" not in done.stderr


SHRUNK = [-0.125 * (2 * (1 + 2 + 3) + sum(range(4, 10))), -0.125 * 3]  # after the first commit


@pytest.mark.long
def test_a_job_shrinks(tmp_path: Path) -> None:
    check_end(job(tmp_path, "kill", "-np", "2", "--min-np", "1", "--no-replace"), 1, SHRUNK)


@pytest.mark.long
def test_a_rank_dies_while_callbacks_of_a_reset_run(tmp_path: Path) -> None:
    """Survivors ended by that: the callbacks were called where nothing was caught."""
    check_end(job(tmp_path, "reset", "-np", "2", "--min-np", "1", "--no-replace"), 1, SHRUNK)
