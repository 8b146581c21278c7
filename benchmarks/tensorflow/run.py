"""Measure steps of TensorFlow on two ranks, and write what came out to `benchmarks/results`.

.venv-tensorflow/bin/python benchmarks/tensorflow/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from check_bars import check_bars
from harness.claim import Claim
from harness.results import Measured
from harness.side_by_side import time_workload

from kadril.frameworks import is_installed

NUM_RANKS, NUM_STARTS = 2, 1
TIMEOUT = 600.0

PEER = "MultiWorkerMirroredStrategy"
WORKLOADS = {
    "Keras step": ("alone", "kadril"),
    "tf.function step": ("alone", "kadril", PEER),
    "20 small all-reduces": ("kadril", "numpy_function"),
}


def measure(num_rounds: int, workloads: Sequence[str]) -> Measured:
    """Let the settings of each workload take turns, each in processes of its own."""
    whole = Measured([])
    for workload in workloads:
        found = time_workload(
            workload,
            Path(__file__).parent / "rank.py",
            {name: ["--workload", workload, "--setting", name] for name in WORKLOADS[workload]},
            num_ranks=NUM_RANKS,
            num_rounds=num_rounds,
            num_starts=NUM_STARTS,
            timeout=TIMEOUT,
        )
        whole = Measured([*whole.series, *found.series], missing={**whole.missing, **found.missing})
    return whole


def use_tensorflow() -> None:
    """Go on in the environment of TensorFlow, where this one has none."""
    python = Path(__file__).resolve().parents[2] / ".venv-tensorflow" / "bin" / "python"
    if not is_installed("tensorflow") and python.exists():
        os.execv(python, [str(python), *sys.argv])  # noqa: S606 - the same program


if __name__ == "__main__":
    use_tensorflow()
    Claim(
        theme="tensorflow",
        title="Steps of TensorFlow and Keras",
        num_ranks=NUM_RANKS,
        num_rounds=20,
        measure=measure,
        check=check_bars,
        workloads=tuple(WORKLOADS),
    ).main()
