"""Measure all-reduces and training steps across hosts beside gloo, Open MPI and MPICH.

    python benchmarks/tiers/run.py [--rounds N] [--output DIR] [--only WORKLOAD]

Needs root: hosts are namespaces on this machine. With `--only` it measures one layout on one link,
and leaves the others in today's file as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from calibration import calibrate
from check_bars import check_bars, describe
from contestants import SUMS, TRAININGS
from harness.claim import Claim
from harness.results import Measured, Series
from harness.turns import take_turns
from job import ContestantLost, Job, Sample
from layouts import FAST, LAYOUTS, LINKS, SLOW, TRAINING, Layout
from picture import draw

from kadril.testing.host_network import hosts

NUM_ROUNDS = 5
NUM_STEPS = 2
SLOWEST = "gloo, round robin"  # it takes half the time of all

SUM_WORKLOADS = {
    f"{layout.name}, {link.name}": (layout, link) for link in LINKS for layout in LAYOUTS
}


def measure(num_rounds: int, wanted: Sequence[str]) -> Measured:
    """Measure each workload on hosts of its own."""
    machine = Measured([], {"calibration": calibrate(), "cores": os.cpu_count()}, {})
    workloads = (
        measure_training(num_rounds) if name == TRAINING else measure_sums(name, num_rounds)
        for name in wanted
    )
    return Measured.join([machine, *workloads])


def measure_sums(name: str, num_rounds: int) -> Measured:
    """Time all-reduces of all sizes on one layout and link."""
    layout, link = SUM_WORKLOADS[name]
    contestants = {who: each for who, each in SUMS.items() if link is SLOW or who != SLOWEST}
    series: list[Series] = []
    facts: dict[str, Any] = {}
    with (
        hosts(layout.num_hosts, ranks=layout.num_local, rate=link.rate) as net,
        Job(net, contestants) as job,
    ):
        for num_bytes, num_calls in link.sizes.items():
            workload = link.workload(layout, num_bytes)
            print(workload, file=sys.stderr, flush=True)
            samples = time_all(job, num_bytes, num_calls, num_rounds)
            series += make_series(workload, samples)
            facts[workload] = {
                contestant: max(sample.most_bytes for sample in taken) / num_bytes
                for contestant, taken in samples.items()
            }
        missing = {f"{name}, {who}": why for who, why in job.missing.items()}
    return Measured(series, facts, missing)


def measure_training(num_rounds: int) -> Measured:
    """Time training steps on 2x2."""
    layout = Layout(2, 2)
    print(TRAINING, file=sys.stderr, flush=True)
    with hosts(2, ranks=layout.num_local, rate=FAST.rate) as net, Job(net, TRAININGS) as job:
        samples = time_all(job, 0, NUM_STEPS, num_rounds)
        missing = {f"{TRAINING}, {who}": why for who, why in job.missing.items()}
    return Measured(make_series(TRAINING, samples), {}, missing)


def time_all(job: Job, num_bytes: int, num_calls: int, num_rounds: int) -> dict[str, list[Sample]]:
    """Let all contestants take turns; whoever fails has no samples."""

    def taker(name: str) -> Any:
        def take() -> Sample | None:
            if name in job.missing:
                return None
            try:
                return job.take_turn(name, num_calls)
            except ContestantLost:
                return None

        return take

    for name in job.names:
        try:
            job.prepare(name, num_bytes)
        except ContestantLost:
            continue
    found = take_turns({name: taker(name) for name in job.names}, num_rounds)
    return {name: taken for name, taken in found.items() if name not in job.missing}


def make_series(workload: str, samples: Mapping[str, Sequence[Sample]]) -> list[Series]:
    """Return the series of a workload."""
    return [
        Series(workload, name, [[sample.seconds] for sample in taken], note_of(workload, taken))
        for name, taken in samples.items()
    ]


def note_of(workload: str, taken: Sequence[Sample]) -> str:
    """Tell how much has crossed the busiest uplink."""
    most = max(sample.most_bytes for sample in taken)
    return f"{most / 2**20:.3f} MiB on the busiest uplink and direction"


if __name__ == "__main__":
    Claim(
        theme="tiers",
        title="All-reduce across hosts",
        num_ranks=8,
        num_rounds=NUM_ROUNDS,
        measure=measure,
        check=check_bars,
        describe=describe,
        draw=draw,
        workloads=[*SUM_WORKLOADS, TRAINING],
    ).main()
