"""Compare a results file of `run.py` with the bars that kadril set itself.

python benchmarks/tensorflow/check_bars.py benchmarks/results/tensorflow-<cpu>-<date>.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar, at_least, at_most
from harness.check import main
from harness.results import Results

__all__ = ["check_bars"]

MOST = 1.15


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    for workload in ("Keras step", "tf.function step"):
        alone, kadril = results.find(workload, "alone"), results.find(workload, "kadril")
        text = f"{workload} of a 10M-parameter MLP: at most {MOST:g}x of one without communication"
        yield at_most(text, results.ratio(kadril, alone), MOST)
    peer = results.find("tf.function step", "MultiWorkerMirroredStrategy")
    kadril = results.find("tf.function step", "kadril")
    text = "tf.function step: at least 1.5x the throughput of MultiWorkerMirroredStrategy"
    yield at_least(text, results.ratio(peer, kadril), 1.5)
    small = "20 small all-reduces"
    ratio = results.ratio(results.find(small, "numpy_function"), results.find(small, "kadril"))
    yield at_least(f"{small} in one tf.function: at least 3x by numpy_function", ratio, 3)


if __name__ == "__main__":
    main(check_bars)
