"""The program of a rank: times steps in turns, or measures the memory of one.

python rank.py DIRECTORY --rounds N        under kadril run
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from harness.program import leave_answer, read_words
from harness.setting import Setting, time_settings
from live_bytes import most_live_bytes
from models import make_batch, make_model

import kadril
from kadril.experiment import SumSquaredDiffs


def step_of(model: object, rank_works: bool) -> Callable[[], object]:
    """Return a training step; nothing on a rank that only waits."""
    inputs, targets = make_batch(model)
    if not rank_works:
        return lambda: None
    return lambda: model.take_step(inputs, targets, 1, len(targets))  # type: ignore[attr-defined]


def pretraining_step(model: object, rank_works: bool) -> Callable[[], object]:
    """Return a step of pretraining of the second filtering layer."""
    inputs, _ = make_batch(model)
    if not rank_works:
        return lambda: None
    layers = model.sequence  # type: ignore[attr-defined]
    layer = layers[3]
    layer.pretrain_mode(layers[4])

    def step() -> None:
        x = inputs
        for below in layers[:3]:
            below.fprop(x)
            x = below.output
        layer.pretrain(x, SumSquaredDiffs(), 0, len(inputs))

    return step


class CpuTime:
    """The CPU time that calls take on this rank: other programs disturb it less than the clock.

    Attributes:
        samples: seconds of each call.
    """

    def __init__(self) -> None:
        self.samples: list[float] = []

    def around(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return a call that is measured."""

        def measured() -> None:
            start = time.process_time()
            call()
            self.samples.append(time.process_time() - start)

        return measured


def main() -> None:
    """Measure: times on two ranks, memory on any number."""
    words = read_words()
    torch.set_num_threads(1)
    world = kadril.init(transport="shm")
    answer: dict[str, object] = {}
    if words.rounds:
        tables = {}
        used: dict[str, dict[str, CpuTime]] = {}
        for workload, kind, make in (
            ("cnn step", "cnn", step_of),
            ("gb step", "gb", step_of),
            ("gb pretraining step", "gb", pretraining_step),
        ):
            calls = {
                "1 rank": make(make_model(kind, plain=True), world.rank == 0),
                "2 ranks": make(make_model(kind, plain=False), True),
            }
            used[workload] = {name: CpuTime() for name in calls}
            tables[workload] = [
                Setting(name, used[workload][name].around(call), num_calls=5)
                for name, call in calls.items()
            ]
        answer["samples"] = {
            workload: time_settings(
                settings, num_rounds=words.rounds, barrier=world.transport.barrier
            )
            for workload, settings in tables.items()
        }
        answer["cpu"] = {
            workload: {name: statistics.median(clock.samples) for name, clock in clocks.items()}
            for workload, clocks in used.items()
        }
    else:
        for kind in ("cnn", "gb"):
            model = make_model(kind, plain=world.size == 1)
            model.autograd = True
            step = step_of(model, rank_works=True)
            step()
            answer[kind] = most_live_bytes(step)
    leave_answer(words.directory, world.rank, answer)
    kadril.shutdown()


if __name__ == "__main__":
    main()
