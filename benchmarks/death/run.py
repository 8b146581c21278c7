"""Kill ranks at random moments, and write how soon the survivors knew.

python benchmarks/death/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

from workload import mix

from kadril.observe.machine import look_at_machine
from kadril.testing import Ranks, shutdown

RESULTS = Path(__file__).parents[1] / "results"
BOUND = 1.0  # seconds


@dataclasses.dataclass
class Tally:
    """What came out of the rounds over one transport."""

    transport: str
    first_seed: int
    num_rounds: int = 0
    num_hung: int = 0
    num_wrong: int = 0
    delays: list[float] = dataclasses.field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether the claim held in every round."""
        return not self.num_hung and not self.num_wrong and max(self.delays) < BOUND

    def line(self) -> str:
        """One row of the table."""
        delays = sorted(self.delays)
        p50, p99 = delays[len(delays) // 2], delays[min(len(delays) - 1, len(delays) * 99 // 100)]
        return (
            f"| {self.transport} | {self.num_rounds} | {self.num_hung} | {self.num_wrong}"
            f" | {p50 * 1e3:.1f} | {p99 * 1e3:.1f} | {delays[-1] * 1e3:.1f} |"
        )


def kill_one(tally: Tally, seed: int) -> None:
    """One round."""
    dice = random.Random(seed)  # noqa: S311
    size = dice.choice([2, 3, 4])
    victim = dice.randrange(size)
    with Ranks(size, transport=tally.transport, patience=20.0) as ranks:
        ranks.start(mix, seed).wait_mark("running")
        time.sleep(dice.uniform(0, 0.03))
        ranks.signal(victim, signal.SIGKILL)
        outcomes = [outcome for outcome in ranks.wait(10.0) if outcome.rank != victim]
    tally.num_rounds += 1
    if any(outcome.hung for outcome in outcomes):
        tally.num_hung += 1
        return
    told = {
        (outcome.error.type, outcome.error.fields["rank"]) if outcome.error else None
        for outcome in outcomes
    }
    tally.num_wrong += told != {("PeerLost", victim)}
    tally.delays.append(max(outcome.delay or 0.0 for outcome in outcomes))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory")
    arguments = parser.parse_args()
    machine = look_at_machine()
    load = [os.getloadavg()[0]]
    first_seed = random.SystemRandom().randrange(10**6)
    tallies = [Tally("shm", first_seed), Tally("c10d", first_seed)]
    for i in range(arguments.rounds):
        for tally in tallies:
            # gloo's rounds are slow to start, and are here for comparison only.
            if tally.transport == "shm" or i % 5 == 0:
                kill_one(tally, first_seed + i)
    shutdown()
    load.append(os.getloadavg()[0])

    lines = [
        "| transport | rounds | hung | wrong | p50 ms | p99 ms | max ms |",
        "|---|---|---|---|---|---|---|",
        *(tally.line() for tally in tallies),
    ]
    print("\n".join(lines))
    cpu = re.sub(r"[^a-z0-9]+", "-", machine.cpu.lower()).strip("-")
    date = datetime.datetime.now().astimezone().date().isoformat()
    path = arguments.output / f"death-{cpu}-{len(machine.cores)}-cores-{date}.json"
    path.parent.mkdir(exist_ok=True)
    report = {
        "date": date,
        "command": f"benchmarks/death/run.py --rounds {arguments.rounds}",
        "machine": machine._asdict(),
        "load": load,
        "tallies": [dataclasses.asdict(tally) for tally in tallies],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")
    heading = f"# The death of a rank\n\n{machine.cpu}, {len(machine.cores)} cores, {date},"
    heading += f" load {load[0]:.1f} to {load[1]:.1f}\n\n"
    path.with_suffix(".md").write_text(heading + "\n".join(lines) + "\n")
    return 0 if all(tally.holds for tally in tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
