"""A script for Horovod, unmodified, on kadril: more ranks take the same steps as one process.

The derived bound. Ranks only change the order in which the numbers of a step are added up. In
float64, a sum of n terms is off by at most n * 2^-53 of the sum of their sizes. A gradient of the
first layer is the longest sum, over 64 images of 24 x 24 places: n < 4e4, so it is off by less than
5e-12 of that. Terms of both signs make the sum of sizes larger than the sum itself, and 16 steps of
learning rate 0.05 carry the difference on; a factor of 200 for both, which is generous to a network
whose loss changes by 5 % meanwhile, gives 1e-9. What could go wrong is larger by far: a sum for an
average, a rank that is left out, a batch that is counted twice; a test shows one of them.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from example import run_example

BOUND = 1e-9
NUMBER = r"(\d+\.\d+(?:e-?\d+)?)"


@cache
def losses(num_ranks: int, *arguments: str) -> list[tuple[float, float]]:
    """Loss in training and test after each epoch."""
    words = ("--double", "--num-images", "480", "--epochs", "2", *arguments)
    lines = run_example("horovod_mnist.py", *words, num_ranks=num_ranks, compat="horovod")
    text = "\n".join(lines)
    found = re.findall(rf"train loss {NUMBER}, test loss {NUMBER},", text)
    assert len(found) == 2, text
    assert text.count(f"{num_ranks} ranks") == 2, "one rank prints"
    return [(float(train), float(test)) for train, test in found]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_same_loss_as_one_process_with_the_whole_batch(num_ranks: int) -> None:
    for ours, alone in zip(losses(num_ranks), losses(1), strict=True):
        assert ours == pytest.approx(alone, rel=BOUND)


def test_the_loss_falls() -> None:
    first, last = losses(1)
    assert last[0] < first[0]
    assert last[1] < first[1]


def test_a_wrong_gradient_would_be_seen() -> None:
    # Twice the learning rate is what a sum over two ranks in place of an average does.
    for other, alone in zip(losses(1, "--lr", "0.1"), losses(1), strict=True):
        assert other != pytest.approx(alone, rel=1e-3)


def test_gradients_in_half_precision() -> None:
    # 11 bits are left of a gradient. The loss is still the same to two digits.
    for ours, alone in zip(losses(2, "--fp16-allreduce"), losses(1), strict=True):
        assert ours == pytest.approx(alone, rel=0.02)
