"""Measure experiments on towers: times, memory and answers; and write what came out.

MNIST_FOLDER=DIR python benchmarks/experiment/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from check_bars import NEON, check_bars, costs_of
from harness.claim import Claim
from harness.program import run_program
from harness.results import Measured, Results
from harness.turns import make_series
from models import FILES

TIMEOUT = 900.0
RANK = Path(__file__).with_name("rank.py")
# neon's runs: what differs from the examples.
RUNS = {
    "cnn": (["1", "2", "4"], ["--sample-pct", "10"]),
    "gb": (["1", "2", "4"], ["--sample-pct", "1", "--epochs", "2", "--pretrain-epochs", "2"]),
}


def measure(num_rounds: int) -> Measured:
    """Measure steps, memory and whole runs."""
    steps = run_program(RANK, ["--rounds", str(num_rounds)], num_ranks=2, timeout=TIMEOUT)
    facts: dict[str, Any] = {"cpu": most_cpu_time(steps), "memory": measure_memory()}
    missing = {}
    folder = os.environ.get("MNIST_FOLDER")
    if folder is None:
        missing["whole runs"] = "MNIST_FOLDER names no folder"
    else:
        facts["runs"] = {
            kind: {ranks: whole_run(kind, ranks, words, folder) for ranks in all_ranks}
            for kind, (all_ranks, words) in RUNS.items()
        }
    return Measured(make_series(steps), facts, missing)


def most_cpu_time(answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return, for each workload and setting, seconds of CPU per step of the rank that took most."""
    return {
        workload: {name: max(each["cpu"][workload][name] for each in answers) for name in settings}
        for workload, settings in answers[0]["cpu"].items()
    }


def measure_memory() -> dict[str, dict[str, int]]:
    """Return, for each model and number of ranks, the bytes of the rank that has most."""
    memory: dict[str, dict[str, int]] = {"cnn": {}, "gb": {}}
    for num_ranks in (1, 2, 4):
        found = run_program(RANK, ["--rounds", "0"], num_ranks=num_ranks, timeout=TIMEOUT)
        for kind, sizes in memory.items():
            sizes[str(num_ranks)] = max(each[kind] for each in found)
    return memory


def whole_run(kind: str, ranks: str, words: list[str], folder: str) -> Any:
    """Return what `kadril experiment` writes of a run."""
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory) / "results.json"
        command = [sys.executable, "-m", "kadril", "experiment", str(FILES[kind]), "-np", ranks]
        command += ["--data", folder, "--threads", "1", "--no-progress", *words]
        subprocess.run([*command, "--results", str(results)], check=True, timeout=TIMEOUT)
        return json.loads(results.read_text())


def describe(results: Results) -> list[str]:
    """Return the CPU time of steps, and what the whole runs gave, beside neon's."""
    lines = []
    for workload, seconds in results.facts.get("cpu", {}).items():
        one, two = seconds["1 rank"], seconds["2 ranks"]
        lines.append(
            f"{workload}: CPU time {1e3 * one:.1f} ms on 1 rank, {1e3 * two:.1f} ms on each of 2"
            f" ({one / two:.2f}x), waiting for the other included"
        )
    for kind, runs in results.facts.get("runs", {}).items():
        neon = NEON[kind]
        rows = [("neon, 1 process", neon["costs"], neon["misclassified"], neon["seconds"])]
        for ranks, run in runs.items():
            seconds = run["seconds"] + run["prediction_seconds"]
            rows.append((f"{ranks} rank(s)", costs_of(kind, run), run["misclassified"][0], seconds))
        for name, costs, rates, seconds in rows:
            shown = ", ".join(f"{cost:.5f}" if cost < 10 else f"{cost:.2f}" for cost in costs)
            rate = f"{rates['train']:.5f} % / {rates['test']:.5f} %"
            lines.append(f"{kind}, {name}: costs {shown}; misclassified {rate}; {seconds:.1f} s")
    return lines


def draw(results: Results, path: Path) -> str:
    """Draw the memory of a rank by the number of ranks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    panel = figure.subplots()
    for place, (kind, sizes) in enumerate(results.facts["memory"].items()):
        ranks = [int(each) for each in sizes]
        mebibytes = [size / 2**20 for size in sizes.values()]
        panel.plot(ranks, mebibytes, marker="o", color=f"C{place}", label=kind)
        ideal = [mebibytes[0] / each for each in ranks]
        panel.plot(ranks, ideal, linestyle=":", color=f"C{place}", label=f"{kind}: one over ranks")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(ranks, [str(each) for each in ranks])
    panel.set_xlabel("ranks")
    panel.set_ylabel("MiB of tensors per rank, at most")
    panel.legend(fontsize=8)
    figure.savefig(path)
    return "memory of a rank during a training step, by the number of ranks"


CLAIM = Claim(
    theme="experiment",
    title="Experiments on towers",
    num_ranks=2,
    num_rounds=15,
    measure=measure,
    check=check_bars,
    describe=describe,
    draw=draw,
)

if __name__ == "__main__":
    CLAIM.main()
