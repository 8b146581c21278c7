"""Programs written after Horovod's own elastic examples, one rank of which is killed from outside.

They are in horovod_elastic/, with a stand-in for torchvision, and know nothing of kadril.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from launch_playground import SOURCE, Playground

EXAMPLES = Path(__file__).parent / "horovod_elastic"

# program, its words, what it says while it trains, and what it says at the end
CASES = [
    (
        "pytorch_mnist_elastic.py",
        ["--epochs", "6", "--batch-size", "16", "--log-interval", "4"],
        rb"Train Epoch: 2",
        r"Test set: Average loss: \d",
    ),
    (
        "pytorch_synthetic_benchmark_elastic.py",
        ["--batch-size", "4", "--num-batches-per-iter", "5", "--num-iters", "40"],
        rb"Iter #3",
        r"Total img/sec on 2 CPU\(s\)",
    ),
]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "words", "training", "end"), CASES, ids=["mnist", "synthetic"])
def test_an_example_of_horovod_survives_a_rank(
    playground: Playground, name: str, words: list[str], training: bytes, end: str
) -> None:
    env = {
        "PYTHONPATH": f"{SOURCE}:{EXAMPLES}",
        "TORCHINDUCTOR_CACHE_DIR": str(playground.directory),  # torch leaves it behind
        "OMP_NUM_THREADS": "1",
    }
    flags = ["--compat", "horovod", "--no-prefix", "--verbose", "-np", "2", "--min-np", "1"]
    launched = playground.start(*flags, str(EXAMPLES / name), *words, env=env)
    launched.await_output(training, timeout=120.0)
    found = re.search(rb"worker 1 is process (\d+)", launched.err)
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)
    result = launched.finish(timeout=150.0)
    said = result.err.decode()
    assert result.code == 0, said
    assert re.search(r"generation 1: 2 ranks, 1 of them new", said), said
    assert len(re.findall(end, result.out.decode())) == 1, result.out.decode()
