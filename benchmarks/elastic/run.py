"""Kill a rank of elastic jobs, and write how soon the jobs have gone on.

python benchmarks/elastic/run.py [--rounds N] [--output DIR] [--only WORKLOAD]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar
from harness.claim import Claim
from harness.results import Measured, Results, Series

HERE = Path(__file__).parent
NUM_RANKS = 3

# setting: its flags
SETTINGS: dict[str, tuple[str, ...]] = {
    "replaced": ("--min-np", "2"),
    "replaced, forked": ("--min-np", "2", "--spares", "0"),
    "replaced, started": ("--min-np", "2", "--spares", "0", "--no-fork-server"),
    "shrunk": ("--min-np", "1", "--no-replace"),
}
BARS = {"replaced": 2.0, "replaced, forked": 2.0, "shrunk": 0.3}  # seconds, of the median
NOTES = {
    "replaced": "a process that waited takes the place; --spares 1 is the default",
    "replaced, forked": "a process is forked from one that has loaded torch, and runs the program",
    "replaced, started": "a process is started, and loads what the program loads",
    "torchrun": "all processes are started again; TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
}
WORKLOADS = ("plain", "torch", "sharded")

MISSING = {
    "Horovod": "documented: needs two hosts or more; a host on which a worker fails is set aside"
    " whole, no worker is started again in place, and survivors of torch programs crash (#2908)",
}


def recover(workload: str, setting: str) -> float:
    """Run a job in which a rank is killed; return the seconds until the next step has ended."""
    with tempfile.TemporaryDirectory() as directory:
        if setting == "torchrun":
            words = ["torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_RANKS}"]
            words += ["--max-restarts=3", str(HERE / "torchrun_rank.py"), directory]
        else:
            num_processes = NUM_RANKS + (setting == "replaced")  # it waits for the spare one
            words = ["kadril", "run", "-np", str(NUM_RANKS), *SETTINGS[setting], "--no-prefix"]
            words += [str(HERE / "rank.py"), workload, directory, str(num_processes)]
            words += ["forked"] * (setting == "replaced, forked")
        command = [sys.executable, "-m", *words]
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=500, env=environment
        )
    killed = [float(text) for text in re.findall(r"killed (\S+)", done.stdout)]
    stepped = [float(text) for text in re.findall(r"stepped (\S+)", done.stdout)]
    if done.returncode or len(killed) != 1 or len(stepped) != 1:
        said = f"{done.stdout}\n{done.stderr}"
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return stepped[0] - killed[0]


def measure(num_rounds: int, workloads: Sequence[str]) -> Measured:
    """Run all jobs, in turns."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(num_rounds):
        for workload in workloads:
            for setting in settings_of(workload):
                seconds = recover(workload, setting)
                found.setdefault((workload, setting), []).append([seconds])
                print(f"{workload}, {setting}: {seconds:.3f} s", flush=True)
    return Measured(
        [Series(*names, rounds, NOTES.get(names[1], "")) for names, rounds in found.items()],
        missing=MISSING,
    )


def settings_of(workload: str) -> list[str]:
    """Return the settings of a workload: without torch there is no fork server, and no torchrun."""
    if workload == "plain":
        return [setting for setting in SETTINGS if setting != "replaced, forked"]
    return [*SETTINGS, *(["torchrun"] if workload == "torch" else [])]


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    for series in results.series:
        limit = BARS.get(series.setting)
        if limit is None:
            continue
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
        workloads=WORKLOADS,
    ).main()
