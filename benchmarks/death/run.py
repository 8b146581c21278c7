"""Kill ranks at random moments, and write how soon the survivors knew.

python benchmarks/death/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import dataclasses
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar
from harness.claim import Claim
from harness.results import Measured, Results, Series
from workload import mix

from kadril.bench.figures import percentile
from kadril.testing import Ranks, shutdown

BOUND = 1.0  # seconds
TRANSPORTS = ("shm", "c10d")
SIZES = (2, 3, 4)


@dataclasses.dataclass
class Tally:
    """Results of the rounds over one transport."""

    transport: str
    first_seed: int
    num_rounds: int = 0
    num_hung: int = 0
    num_wrong: int = 0
    delays: list[float] = dataclasses.field(default_factory=list)


def kill_one(tally: Tally, seed: int) -> None:
    """Run one round: start ranks, kill one of them, and wait until the others know."""
    dice = random.Random(seed)  # noqa: S311
    size = dice.choice(SIZES)
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


def measure(num_rounds: int) -> Measured:
    """Run all rounds."""
    first_seed = random.SystemRandom().randrange(10**6)
    tallies = [Tally(transport, first_seed) for transport in TRANSPORTS]
    for number in range(num_rounds):
        for tally in tallies:
            # gloo's rounds are slow to start, and are here for comparison only.
            if tally.transport == "shm" or number % 5 == 0:
                kill_one(tally, first_seed + number)
    shutdown()
    series = [
        Series(tally.transport, "from the signal to the exception", [[d] for d in tally.delays])
        for tally in tallies
    ]
    return Measured(series, {"tallies": [dataclasses.asdict(tally) for tally in tallies]})


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    for fields in results.facts["tallies"]:
        tally = Tally(**fields)
        p50, p99, most = (
            percentile(tally.delays or [float("inf")], share) for share in (0.5, 0.99, 1.0)
        )
        holds = not tally.num_hung and not tally.num_wrong and most < BOUND
        yield Bar(
            f"{tally.transport}: every survivor names the dead rank within {BOUND:g} s",
            f"p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, max {most * 1e3:.1f} ms;"
            f" {tally.num_rounds} rounds, {tally.num_hung} hung, {tally.num_wrong} wrong",
            "reached" if holds else "missed",
        )


if __name__ == "__main__":
    Claim(
        theme="death",
        title="The death of a rank",
        num_ranks=max(SIZES),
        num_rounds=200,
        measure=measure,
        check=check_bars,
    ).main()
