"""The one-page examples of models that are split over ranks."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest
from example import EXAMPLES, run_example


def losses(lines: list[str]) -> list[float]:
    """The first loss of each line that has one."""
    found = [re.search(r"loss (\d+\.\d+)", line) for line in lines]
    return [float(match[1]) for match in found if match]


@pytest.mark.parametrize(
    "how",
    [pytest.param((), marks=pytest.mark.long), ("--distribute",)],
    ids=["by layers", "by distribute"],
)
def test_lenet_trains_as_on_one_rank(how: tuple[str, ...]) -> None:
    lines = run_example("lenet_partitioned.py", "--images", "1000", *how, num_ranks=4)
    pattern = r"epoch \d: loss (\S+) on 4 ranks, (\S+) on 1, (\S+) apart"
    found = [re.fullmatch(pattern, line) for line in lines]
    epochs = [(float(match[1]), float(match[3])) for match in found if match]
    assert len(epochs) == 2, lines
    assert all(apart < 1e-4 for _, apart in epochs)
    assert epochs[1][0] < epochs[0][0]


def test_data_by_space_in_two_ways() -> None:
    lines = run_example("data_by_space.py", num_ranks=4)
    pattern = r"step \d: loss (\S+) on one partition, (\S+) on pairs of ranks"
    found = [re.fullmatch(pattern, line) for line in lines]
    steps = [(float(match[1]), float(match[2])) for match in found if match]
    assert len(steps) == 10, lines
    for one, two in steps:
        assert one == pytest.approx(two, rel=1e-4)
    assert steps[-1][0] < 0.8 * steps[0][0]


def refusal_of(name: str) -> str:
    """What an example says where the package with its data is not installed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    return done.stderr


def test_fourier_operator() -> None:
    if importlib.util.find_spec("neuralop") is None:
        assert "pip install --no-deps neuraloperator==0.3.0" in refusal_of("fourier_operator.py")
        return
    few = ("--samples", "100", "--epochs", "2", "--width", "8")
    pairs, alone = (run_example("fourier_operator.py", *few, num_ranks=n) for n in (4, 1))
    assert len(losses(pairs)) == 2
    assert losses(pairs) == pytest.approx(losses(alone), rel=1e-3)
    assert pairs[-1].startswith("relative error on 50 others:")


def test_unet_on_a_brain() -> None:
    if importlib.util.find_spec("nilearn") is None:
        assert "pip install nilearn" in refusal_of("unet_mri.py")
        return
    few = ("--resolution", "8", "--steps", "3", "--width", "2")
    split, alone = (run_example("unet_mri.py", *few, num_ranks=n) for n in (2, 1))
    assert len(losses(split)) == 3
    assert losses(split) == pytest.approx(losses(alone), rel=1e-3)
    assert sum("MiB for the training" in line for line in split) == 2
