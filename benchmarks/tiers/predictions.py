"""Predictions of the cost model for the contestants whose schedule is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
NUM_CORES = 2  # of the machine of older results

# Of a machine that was not calibrated: a few processes on two cores.
TYPICAL = {
    "byte_cost": 0.6e-9,
    "overhead": 50e-6,
    "latency": 200e-6,
    "memory": 2e9,
    "wake_up": 100e-6,
}


def predict(
    link: Link, layout: Layout, num_bytes: int, found: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Return the seconds of an all-reduce, by contestant.

    Args:
        link: of each host.
        layout: hosts and ranks.
        num_bytes: of the array.
        found: facts of the results: their "calibration", and the "cores" of the machine, which all
            hosts share here.
    """
    facts = found or {}
    known = {**TYPICAL, **facts.get("calibration", {})}
    cores = facts.get("cores", NUM_CORES) / layout.num_hosts
    tiers = (
        TierSpeed(known["memory"], known["wake_up"]),
        TierSpeed(link.bandwidth, known["latency"], known["overhead"], known["byte_cost"]),
    )
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
    return {name: schedule.seconds(tiers, cores) for name, schedule in schedules.items()}


def errors_of(results: Results) -> dict[str, float]:
    """Relative errors of predictions for large arrays on the slow link, by workload and name."""
    errors = {}
    for layout in LAYOUTS:
        for num_bytes in sorted(SLOW.sizes)[-2:]:
            workload = SLOW.workload(layout, num_bytes)
            for name, predicted in predict(SLOW, layout, num_bytes, results.facts).items():
                series = results.find(workload, name)
                if series is not None:
                    errors[f"{workload}, {name}"] = predicted / series.p50 - 1
    return errors
