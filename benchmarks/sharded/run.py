"""Measure sharded training on two ranks beside torch's own, and write what came out.

python benchmarks/sharded/run.py [--rounds N] [--output DIR] [--only WORKLOAD]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from check_bars import check_bars, peak_of, rest_of
from harness.claim import Claim
from harness.memory_plot import draw_memory
from harness.memory_trace import MemoryTrace
from harness.program import run_program, start_on_cores
from harness.results import Measured, Results
from harness.side_by_side import time_workload

from kadril.bench.peers import Start
from kadril.bench.plot import check_matplotlib

NUM_RANKS = 2
NUM_LOOKS = 7  # at memory between steps, which depends on what lay above what in the heap
NUM_STARTS = 4  # of all processes that are timed
TIMEOUT = 1800.0
# Models with the kind of Adam that trains them; and memory, of which there are no times.
TIMED = tuple(
    f"{model}, {kind} Adam" for model in ("mlp", "transformer") for kind in ("default", "fused")
)
MEMORY = "memory"
DEEPSPEED = "DeepSpeed ZeRO-2"
TIMED_SETTINGS = (
    "alone",
    "kadril",
    "kadril, stage 1",
    "kadril, compiled",
    "kadril, inductor",
    "DDP",
    "DDP, views",
    "DDP + ZeRO",
    "DDP + ZeRO, views",
    "FSDP2",
    DEEPSPEED,
)
MEMORY_SETTINGS = {
    "transformer": (
        "alone",
        "DDP",
        "DDP, views",
        "DDP + ZeRO",
        "FSDP2",
        "kadril, stage 1",
        "kadril",
    ),
    "wide transformer": ("DDP", "DDP, views", "kadril, stage 1", "kadril"),
}
TRACED_SETTINGS = (
    "DDP",
    "DDP, views",
    "DDP, compiled",
    "kadril, stage 1",
    "kadril, stage 2",
    "kadril, compiled",
    "kadril, inductor",
)
DRAWN_SETTINGS = ("DDP", "kadril, stage 1", "kadril, stage 2", "kadril, compiled")
PROGRAM = Path(__file__).with_name("rank.py")


def measure(num_rounds: int, workloads: Sequence[str]) -> Measured:
    """Time all settings, and look at the memory of each; all in processes of their own."""
    parts = [measure_time(name, num_rounds) for name in workloads if name != MEMORY]
    if MEMORY in workloads:
        step = {setting: trace(setting) for setting in TRACED_SETTINGS}
        parts.append(Measured([], {"memory": measure_memory(), "step": step}))
    return Measured.join(parts)


def measure_time(workload: str, num_rounds: int) -> Measured:
    """Time all settings of a model with one kind of Adam."""
    model, _, kind = workload.partition(", ")
    words = ["--model", model, *(["--fused"] if kind == "fused Adam" else [])]
    return time_workload(
        workload,
        PROGRAM,
        {setting: [*words, "--setting", setting] for setting in TIMED_SETTINGS},
        num_ranks=NUM_RANKS,
        num_rounds=num_rounds,
        num_starts=NUM_STARTS,
        timeout=TIMEOUT,
        starts=find_starts(),
    )


def measure_memory() -> dict[str, dict[str, list[list[dict[str, int]]]]]:
    """Look at the memory between steps: by model, by setting, look by look, by rank."""
    return {
        model: {
            setting: [
                run_program(
                    PROGRAM,
                    ["--look", "memory", "--model", model, "--setting", setting],
                    num_ranks=NUM_RANKS,
                    timeout=TIMEOUT,
                )
                for _ in range(NUM_LOOKS)
            ]
            for setting in settings
        }
        for model, settings in MEMORY_SETTINGS.items()
    }


def find_starts() -> dict[str, Start]:
    """Return how to start settings that have an environment of their own; `make bench` makes it."""
    python = Path(__file__).parents[2] / ".venv-deepspeed" / "bin" / "python"
    return {DEEPSPEED: start_on_cores(NUM_RANKS, str(python))} if python.exists() else {}


def trace(setting: str) -> list[dict[str, object]]:
    """Return what each rank saw of its memory during a step."""
    start = start_on_cores(NUM_RANKS)
    # So that what is freed is seen to be: glibc gives large blocks back at once.
    start = start._replace(environment={**start.environment, "MALLOC_MMAP_THRESHOLD_": "65536"})
    words = ["--look", "trace", "--setting", setting]
    return run_program(PROGRAM, words, num_ranks=NUM_RANKS, timeout=TIMEOUT, start=start)


def describe_memory(results: Results) -> list[str]:
    """Return a line for each setting."""
    lines = []
    for model, settings in results.facts.get("memory", {}).items():
        for setting in settings:
            looks = rest_of(results, model, setting)
            after, growth = (median(each) / 2**20 for each in zip(*looks, strict=True))
            lines.append(
                f"memory of the host between steps, {model}, {setting}: {after:.0f} MiB (PSS of"
                f" all ranks), of which {growth:.0f} MiB more than before the model was made"
            )
    for setting in results.facts.get("step", {}):
        growth = peak_of(results, setting) / 2**20
        most = max(trace_of(results, setting, rank).peak for rank in range(NUM_RANKS)) / 2**20
        lines.append(
            f"memory of a rank with 108 MiB of gradients, {setting}: a forward and backward pass"
            f" adds {growth:.0f} MiB; training adds {most:.0f} MiB at most"
        )
    return lines


def trace_of(results: Results, setting: str, rank: int) -> MemoryTrace:
    """Return what a rank saw of its memory."""
    return MemoryTrace(**results.facts["step"][setting][rank]["trace"])


def draw(results: Results, path: Path) -> str | None:
    """Draw the memory of rank 0 over one step, if it was measured."""
    if "step" not in results.facts:
        return None
    traces = {setting: trace_of(results, setting, 0) for setting in DRAWN_SETTINGS}
    title = f"Memory of one of {results.num_ranks} ranks over a step, 108 MiB of gradients, Adam"
    draw_memory(traces, title, path)
    return title


if __name__ == "__main__":
    check_matplotlib()
    Claim(
        theme="sharded",
        title="Sharded training beside torch's own",
        num_ranks=NUM_RANKS,
        num_rounds=12,
        measure=measure,
        check=check_bars,
        describe=describe_memory,
        draw=draw,
        workloads=(*TIMED, MEMORY),
    ).main()
