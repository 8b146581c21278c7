"""Kill ranks of elastic jobs, and write how soon the jobs have gone on.

python benchmarks/elastic/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar
from harness.claim import Claim
from harness.results import Measured, Results, Series

RANK = Path(__file__).with_name("rank.py")
NUM_RANKS, NUM_KILLS = 3, 3

# setting: its flags, kills of a job, and the bar of its median in seconds
SETTINGS: dict[str, tuple[tuple[str, ...], int, float]] = {
    "replaced": (("--min-np", "2"), NUM_KILLS, 2.0),
    "spare": (("--min-np", "2", "--spares", "1"), 1, 2.0),
    "shrunk": (("--min-np", "1", "--no-replace"), 1, 0.3),
}
PROGRAMS = ("plain", "torch")


def recover(program: str, setting: str) -> list[float]:
    """Run a job; return the seconds of each recovery."""
    flags, num_kills, _ = SETTINGS[setting]
    with tempfile.TemporaryDirectory() as directory:
        words = ["-np", str(NUM_RANKS), *flags, "--no-prefix", str(RANK), program]
        command = [sys.executable, "-m", "kadril", "run", *words, str(num_kills), directory]
        command.append("20" if setting == "spare" else "0")
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    killed = [float(text) for text in re.findall(r"killed (\S+)", done.stdout)]
    stepped = [float(text) for text in re.findall(r"stepped (\S+)", done.stdout)]
    if len(killed) != num_kills or len(stepped) != num_kills:
        raise RuntimeError(f"{num_kills} kills were asked for:\n{done.stdout}{done.stderr}")
    return [end - start for start, end in zip(killed, stepped, strict=True)]


def measure(num_rounds: int) -> Measured:
    """Run all jobs, in turns."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(num_rounds):
        for program in PROGRAMS:
            for setting in SETTINGS:
                found.setdefault((program, setting), []).append(recover(program, setting))
    return Measured(
        [Series(program, setting, rounds) for (program, setting), rounds in found.items()]
    )


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    for series in results.series:
        limit = SETTINGS[series.setting][2]
        p50, most = series.p50, series.percentile(1.0)
        yield Bar(
            f"{series.workload}, {series.setting}: next step within {limit:g} s of SIGKILL (p50)",
            f"p50 {p50:.3f} s, p90 {series.percentile(0.9):.3f} s, max {most:.3f} s,"
            f" {sum(map(len, series.rounds))} kills",
            "reached" if p50 < limit else "missed",
        )


if __name__ == "__main__":
    Claim(
        theme="elastic",
        title="Recovery of an elastic job",
        num_ranks=NUM_RANKS,
        num_rounds=5,
        measure=measure,
        check=check_bars,
    ).main()
