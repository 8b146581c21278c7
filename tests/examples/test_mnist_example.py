"""examples/mnist.py, as `make demo` runs it, but smaller."""

from __future__ import annotations

import re

from example import launch_example


def test_it_learns_to_read_digits() -> None:
    words = ("--width", "128", "--epochs", "2", "--rounds", "2")
    lines = launch_example("mnist.py", *words, options=("--bind",))
    text = "\n".join(lines)
    assert "2 ranks train 134,794 parameters on 4000 images" in lines[0]
    shown = [re.fullmatch(r"epoch (\d) \[#{32}\] loss (\d\.\d+)", line) for line in lines]
    losses = [float(match[2]) for match in shown if match]
    assert len(losses) == 2, text
    assert losses[1] < losses[0]
    accuracy = re.search(r"right answers on 1000 images that it has not seen: (\d+\.\d)%", text)
    assert accuracy is not None, text
    assert float(accuracy[1]) > 80  # one in ten by guessing
    times = re.findall(r"^ +(\d+\.\d) ms  (.+)$", text, flags=re.MULTILINE)
    assert [name for _, name in times] == [
        "no communication: each rank for itself",
        "kadril.torch.DistributedOptimizer",
        "DistributedDataParallel on gloo",
    ]
    assert all(float(milliseconds) > 0 for milliseconds, _ in times)
