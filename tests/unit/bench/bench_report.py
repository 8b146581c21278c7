"""A report made by hand, for the tests of what is made from reports."""

from __future__ import annotations

from collections.abc import Mapping

from kadril.bench.figures import make_ratios, make_results
from kadril.bench.report import Idleness, Report
from kadril.bench.rounds import Key, Measurements
from kadril.bench.task import Task

__all__ = ["make_report"]


def make_report(series: Mapping[Key, list[list[float]]], num_ranks: int = 2) -> Report:
    """A report of samples: one list for each round."""
    tasks = {
        key: Task(
            engine=key.engine,
            collective=key.collective,
            num_bytes=key.num_bytes,
            num_calls=1,
            num_samples=len(rounds[0]),
            touch=True,
            pinned=key.setting == "pinned",
        )
        for key, rounds in series.items()
    }
    results = make_results(Measurements(tasks, dict(series), {}), num_ranks)
    return Report(
        date="2026-11-15T20:00:00+00:00",
        command="kadril bench",
        num_ranks=num_ranks,
        machine={"cpu": "Abacus", "cores": [0, 1], "memory": 2**34, "kernel": "K", "libc": "L"},
        load={"begin": (0.1, 0.1, 0.1), "end": (0.2, 0.2, 0.2)},
        versions={"kadril": "0.1.0"},
        options={"num_ranks": num_ranks},
        missing={"mpich": "not here"},
        idle={"kadril": Idleness(0.001, 10.0)},
        results=tuple(results),
        ratios=tuple(make_ratios(results)),
    )
