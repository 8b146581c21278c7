"""Predictions of the cost model for the contestants whose schedule is known."""

from __future__ import annotations

from harness.results import Results
from layouts import LAYOUTS, SLOW, Layout, Link

from kadril.transport.tiers.cost_model import (
    TierSpeed,
    flat_schedule,
    grid_topology,
    ring_schedule,
    tiered_schedule,
)

__all__ = ["MOST_ERROR", "errors_of", "predict"]

MOST_ERROR = 0.2

# A few processes on two cores: what they reach in memory, and how long a wake-up takes.
MEMORY = TierSpeed(bandwidth=2e9, latency=100e-6)
LATENCY, OVERHEAD = 200e-6, 50e-6


def predict(link: Link, layout: Layout, num_bytes: int) -> dict[str, float]:
    """Return the seconds of an all-reduce, by contestant."""
    tiers = (MEMORY, TierSpeed(link.bandwidth, LATENCY, OVERHEAD))
    topology = grid_topology(*layout)
    schedules = {
        "tiered": tiered_schedule(topology, num_bytes),
        "tiered, gloo": tiered_schedule(topology, num_bytes),
        "tiered, round robin": tiered_schedule(topology, num_bytes),
        "tiered, bf16": tiered_schedule(topology, num_bytes, wire=0.5),
        "flat": flat_schedule(*layout, num_bytes),
        "gloo": ring_schedule(*layout, num_bytes),
        "gloo, round robin": ring_schedule(*layout, num_bytes, round_robin=True),
    }
    return {name: schedule.seconds(tiers) for name, schedule in schedules.items()}


def errors_of(results: Results) -> dict[str, float]:
    """Relative errors of predictions for large arrays on the slow link, by workload and name."""
    errors = {}
    for layout in LAYOUTS:
        for num_bytes in sorted(SLOW.sizes)[-2:]:
            workload = SLOW.workload(layout, num_bytes)
            for name, predicted in predict(SLOW, layout, num_bytes).items():
                series = results.find(workload, name)
                if series is not None:
                    errors[f"{workload}, {name}"] = predicted / series.p50 - 1
    return errors
