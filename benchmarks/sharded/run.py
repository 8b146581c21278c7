"""Measure sharded training on two ranks beside torch's own, and write what came out.

python benchmarks/sharded/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from check_bars import check_bars, peak_of, rest_of

from kadril.bench.claim import Outcome, run_claim
from kadril.bench.memory_trace import MemoryTrace
from kadril.bench.peers import Start, clean_environment
from kadril.bench.plot import check_matplotlib, draw_memory
from kadril.bench.program import run_program
from kadril.bench.sheet import Series, Sheet
from kadril.bench.turns import slowest

NUM_RANKS = 2
TIMEOUT = 1800.0
MEMORY_SETTINGS = {
    "transformer": ("alone", "DDP", "DDP + ZeRO", "FSDP2", "kadril, stage 1", "kadril"),
    "wide transformer": ("DDP", "kadril, stage 1", "kadril"),
}
TRACED_SETTINGS = (
    "DDP",
    "DDP, compiled",
    "kadril, stage 1",
    "kadril, stage 2",
    "kadril, compiled",
)
DRAWN_SETTINGS = ("DDP", "kadril, stage 1", "kadril, stage 2", "kadril, compiled")
PROGRAM = Path(__file__).with_name("rank.py")


def measure(num_rounds: int) -> Outcome:
    """Time all settings in the same processes; look at the memory of each in its own."""
    answers = run_program(
        PROGRAM, ["--rounds", str(num_rounds)], num_ranks=NUM_RANKS, timeout=TIMEOUT
    )
    series = [
        Series(name, setting, rounds)
        for name in answers[0]["samples"]
        for setting, rounds in slowest([one["samples"][name] for one in answers]).items()
    ]
    memory = {
        model: {
            setting: run_program(
                PROGRAM,
                ["--look", "memory", "--model", model, "--setting", setting],
                num_ranks=NUM_RANKS,
                timeout=TIMEOUT,
            )
            for setting in settings
        }
        for model, settings in MEMORY_SETTINGS.items()
    }
    step = {setting: trace(setting) for setting in TRACED_SETTINGS}
    return Outcome(series, {"memory": memory, "step": step}, answers[0]["missing"])


def trace(setting: str) -> list[dict[str, object]]:
    """What each rank saw of its memory during a step."""
    launch = ("-m", "kadril", "run", "-np", str(NUM_RANKS), "--bind", "--no-prefix", "--")
    environment = clean_environment(os.environ)
    # So that what is freed is seen to be: glibc gives large blocks back at once.
    environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    start = Start((sys.executable, *launch, sys.executable), environment)
    words = ["--look", "trace", "--setting", setting]
    return run_program(PROGRAM, words, num_ranks=NUM_RANKS, timeout=TIMEOUT, start=start)


def describe_memory(sheet: Sheet) -> list[str]:
    """A line for each setting."""
    lines = []
    for model, settings in sheet.facts["memory"].items():
        for setting in settings:
            after, growth = (each / 2**20 for each in rest_of(sheet, model, setting))
            lines.append(
                f"memory of the host between steps, {model}, {setting}: {after:.0f} MiB (PSS of"
                f" all ranks), of which {growth:.0f} MiB more than before the model was made"
            )
    for setting in sheet.facts["step"]:
        growth = peak_of(sheet, setting) / 2**20
        most = max(trace_of(sheet, setting, rank).peak for rank in range(NUM_RANKS)) / 2**20
        lines.append(
            f"memory of a rank with 108 MiB of gradients, {setting}: a forward and backward pass"
            f" adds {growth:.0f} MiB; training adds {most:.0f} MiB at most"
        )
    return lines


def trace_of(sheet: Sheet, setting: str, rank: int) -> MemoryTrace:
    """What a rank saw of its memory."""
    return MemoryTrace(**sheet.facts["step"][setting][rank]["trace"])


def draw(sheet: Sheet, path: Path) -> str:
    """The memory of rank 0 over one step."""
    traces = {setting: trace_of(sheet, setting, 0) for setting in DRAWN_SETTINGS}
    title = f"Memory of one of {sheet.num_ranks} ranks over a step, 108 MiB of gradients, Adam"
    draw_memory(traces, title, path)
    return title


if __name__ == "__main__":
    check_matplotlib()
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
            draw=draw,
        )
    )
