"""Measure sharded training on two ranks beside torch's own, and write what came out.

python benchmarks/sharded/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import sys
from pathlib import Path

from check_bars import check_bars

from kadril.bench.claim import Outcome, run_claim
from kadril.bench.program import run_program
from kadril.bench.sheet import Series, Sheet
from kadril.bench.turns import slowest

NUM_RANKS = 2
TIMEOUT = 1800.0
MEMORY_SETTINGS = ("alone", "DDP", "DDP + ZeRO", "FSDP2", "kadril, stage 1", "kadril")


def measure(num_rounds: int) -> Outcome:
    """Time all settings in the same processes; take the memory of each in processes of its own."""
    program = Path(__file__).with_name("rank.py")
    answers = run_program(
        program, ["--rounds", str(num_rounds)], num_ranks=NUM_RANKS, timeout=TIMEOUT
    )
    series = [
        Series(name, setting, rounds)
        for name in answers[0]["samples"]
        for setting, rounds in slowest([one["samples"][name] for one in answers]).items()
    ]
    memory = {
        setting: run_program(program, ["--memory", setting], num_ranks=NUM_RANKS, timeout=TIMEOUT)
        for setting in MEMORY_SETTINGS
    }
    return Outcome(series, {"memory": memory}, answers[0]["missing"])


def describe_memory(sheet: Sheet) -> list[str]:
    """A line for each setting."""
    lines = []
    for setting, ranks in sheet.facts["memory"].items():
        after = sum(rank["after"] for rank in ranks) / 2**20
        growth = after - sum(rank["before"] for rank in ranks) / 2**20
        lines.append(
            f"memory of the host, transformer, {setting}: {after:.0f} MiB (PSS of all ranks),"
            f" {growth:.0f} MiB more than before the model was made"
        )
    return lines


if __name__ == "__main__":
    sys.exit(
        run_claim(
            sys.argv[1:],
            program=Path(__file__).resolve(),
            title="Sharded training beside torch's own",
            num_ranks=NUM_RANKS,
            num_rounds=12,
            measure=measure,
            check=check_bars,
            describe=describe_memory,
        )
    )
