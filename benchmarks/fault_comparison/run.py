"""Let the same faults strike kadril, gloo and Open MPI, and write what became of the ranks.

python benchmarks/fault_comparison/run.py [--rounds N] [--output DIR] [--only FAULT]
"""

from __future__ import annotations

import collections
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from fault_comparison.engines import PATIENCE, gloo_rank, kadril_rank
from fault_comparison.scenarios import VICTIM
from harness.bars import Bar
from harness.claim import Claim
from harness.results import Measured, Results, Series

from kadril.testing import Ranks, shutdown
from kadril.testing.outcome import Outcome

NUM_RANKS = 3
HUNG_AFTER = PATIENCE + 5.0
MPI_RANK = Path(__file__).with_name("mpi_rank.py")

# From the best to the worst that can become of a rank.
KINDS = ("right", "named", "error", "died", "wrong", "hung")


class Fault(NamedTuple):
    """A fault, and how it is made.

    Attributes:
        number: in the fault matrix.
        scenario: that ranks run.
        signal: that the victim is sent; None where the scenario itself is the fault.
        victim: rank that is at fault.
        spares_victim: whether what becomes of the victim counts, too.
        bound: seconds that kadril may take.
    """

    number: str
    scenario: str
    signal: int | None = None
    victim: int = VICTIM
    spares_victim: bool = False
    bound: float = 1.0


FAULTS = {
    "a rank is killed": Fault("F01", "run_for_ever", signal.SIGKILL),
    "rank 0 is killed": Fault("F02", "run_for_ever", signal.SIGKILL, 0),
    "a rank is stopped": Fault("F04", "run_for_ever", signal.SIGSTOP, bound=PATIENCE + 1.0),
    "a rank exits": Fault("F05", "exit_early"),
    "shapes differ": Fault("F19", "differ_in_shape", spares_victim=True),
    "dtypes differ": Fault("F20", "differ_in_dtype", spares_victim=True),
    "reductions differ": Fault("F21", "differ_in_op", spares_victim=True),
    "collectives differ": Fault("F22", "differ_in_collective", spares_victim=True),
    "a rank skips a call": Fault("F24", "skip_a_step", bound=PATIENCE + 1.0),
    "four threads on one group": Fault("F30", "call_from_threads", spares_victim=True, bound=30.0),
}
# So many of the rounds has each engine: those of others are slow to start, and for comparison.
SHARES = {"kadril": 1.0, "gloo": 0.15, "Open MPI": 0.1}


class End(NamedTuple):
    """Outcome of one rank: one of `KINDS`, the time of it, and the message of the engine."""

    kind: str
    at: float
    text: str = ""


def names_victim(text: str, victim: int) -> bool:
    """Whether an error says which rank is at fault."""
    return re.search(rf"\branks?\s*\[?(\d+, )*{victim}\b", text) is not None


def judge_error(kind: str, text: str, victim: int) -> str:
    """Return which of `KINDS` an exception is."""
    if kind == "WrongResult":
        return "wrong"
    return "named" if names_victim(text, victim) else "error"


def judge(outcome: Outcome, victim: int) -> End:
    """Return what became of a rank of `Ranks`."""
    now = time.monotonic()
    if outcome.error is not None:
        kind = judge_error(outcome.error.type, outcome.error.message, victim)
        return End(kind, outcome.finished or now, outcome.error.message)
    if outcome.finished is not None:
        return End("right", outcome.finished)
    if outcome.ended is not None:
        return End("died", outcome.ended, f"signal {outcome.signal}, code {outcome.exit_code}")
    return End("hung", now)


def on_forked_ranks(engine: str, fault: Fault) -> tuple[float, list[End]]:
    """Run a round on kadril or gloo: when the fault was, and what became of each rank."""
    with tempfile.TemporaryDirectory() as directory:
        if engine == "kadril":
            ranks = Ranks(NUM_RANKS, patience=PATIENCE)
            program: tuple[Any, ...] = (kadril_rank, fault.scenario)
        else:
            ranks = Ranks(NUM_RANKS, transport=None)
            program = (gloo_rank, fault.scenario, directory)
        with ranks:
            ranks.start(*program).wait_mark("running", timeout=60.0)
            began = time.monotonic()
            if fault.signal is not None:
                ranks.signal(fault.victim, fault.signal)
            outcomes = ranks.wait(HUNG_AFTER)
            return began, [judge(outcome, fault.victim) for outcome in outcomes]


class MpiJob:
    """A job of mpirun whose ranks write what they do to files."""

    def __init__(self, scenario: str, directory: Path) -> None:
        self.files = [directory / f"rank-{rank}" for rank in range(NUM_RANKS)]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        mpirun = Path(sys.executable).with_name("mpirun")
        command = [mpirun, "--oversubscribe", "-np", str(NUM_RANKS), sys.executable, MPI_RANK]
        self.process = subprocess.Popen(
            [*map(str, command), scenario, str(directory)],
            env={**os.environ, **root, "TMPDIR": str(directory), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def told(self, rank: int) -> list[dict[str, Any]]:
        """Return what a rank has written so far."""
        if not self.files[rank].exists():
            return []
        return [json.loads(line) for line in self.files[rank].read_text().splitlines()]

    def wait(self, ranks: Sequence[int], key: str, seconds: float) -> bool:
        """Wait until ranks have written something, or the job is over."""
        deadline = time.monotonic() + seconds
        while not all(any(key in line for line in self.told(rank)) for rank in ranks):
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def end(self) -> None:
        """Kill what is left of it."""
        for rank in range(NUM_RANKS):
            for line in self.told(rank)[:1]:
                try:
                    os.kill(line["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    continue
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def on_mpi(fault: Fault) -> tuple[float, list[End]]:
    """Run a round on Open MPI."""
    with tempfile.TemporaryDirectory() as directory:
        job = MpiJob(fault.scenario, Path(directory))
        everyone = range(NUM_RANKS)
        try:
            if not job.wait(everyone, "mark", 60.0) and job.process.poll() is None:
                raise RuntimeError("the ranks of mpirun did not start")
            began = time.monotonic()
            if fault.signal is not None:
                os.kill(job.told(fault.victim)[0]["pid"], fault.signal)
            judged = [rank for rank in everyone if rank != fault.victim or fault.spares_victim]
            job.wait(judged, "end", HUNG_AFTER)
            return began, [judge_mpi(job, rank, fault.victim) for rank in everyone]
        finally:
            job.end()


def judge_mpi(job: MpiJob, rank: int, victim: int) -> End:
    """Return what became of a rank of mpirun."""
    for line in job.told(rank):
        if line.get("end") == "returned":
            return End("right", line["at"])
        if "end" in line:
            return End(judge_error(line["end"], line["text"], victim), line["at"], line["text"])
    if job.process.poll() is not None:
        return End("died", time.monotonic(), "mpirun ended the job")
    return End("hung", time.monotonic())


def strike(engine: str, fault: Fault) -> tuple[str, float, str]:
    """Run a round; return the worst that became of a rank, after how long, and its words."""
    began, ends = on_mpi(fault) if engine == "Open MPI" else on_forked_ranks(engine, fault)
    counted = [end for rank, end in enumerate(ends) if rank != fault.victim or fault.spares_victim]
    worst = max(counted, key=lambda end: KINDS.index(end.kind))
    return worst.kind, max(0.0, max(end.at for end in counted) - began), worst.text


def measure(num_rounds: int, wanted: Sequence[str]) -> Measured:
    """Run all rounds, the engines in turns."""
    # Jobs of mpirun outlive this process unless it ends them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    series, facts = [], {}
    for text in wanted:
        for engine, share in SHARES.items():
            rounds: list[list[float]] = []
            kinds: collections.Counter[str] = collections.Counter()
            words = ""
            # What takes seconds, or is the same every time, needs no hundreds of rounds.
            most = num_rounds if FAULTS[text].signal == signal.SIGKILL else num_rounds // 10
            for _ in range(max(2, int(most * share))):
                kind, seconds, said = strike(engine, FAULTS[text])
                kinds[kind] += 1
                if said and all(seconds >= other for (other,) in rounds):
                    words = said  # of the slowest
                rounds.append([seconds])
            print(text, engine, dict(kinds), max(rounds), words[:100], flush=True)
            series.append(Series(text, engine, rounds))
            facts[f"{text}: {engine}"] = {"kinds": dict(kinds), "words": words[:300]}
    shutdown()
    return Measured(series, facts)


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield a bar for each fault: what kadril promises."""
    for text, fault in FAULTS.items():
        found = results.find(text, "kadril")
        fact = results.facts.get(f"{text}: kadril")
        if found is None or fact is None:
            yield Bar(text, "", "not measured")
            continue
        good = set(fact["kinds"]) <= ({"right"} if fault.number == "F30" else {"named"})
        most = found.percentile(1.0)
        state = "reached" if good and most < fault.bound else "missed"
        times = f"p50 {found.p50 * 1e3:.1f} ms, max {most * 1e3:.1f} ms"
        yield Bar(f"{text}: within {fault.bound:g} s", f"{times}, {fact['kinds']}", state)


if __name__ == "__main__":
    Claim(
        theme="fault_comparison",
        title="The same faults on kadril, gloo and Open MPI",
        num_ranks=NUM_RANKS,
        num_rounds=200,
        measure=measure,
        check=check_bars,
        workloads=tuple(FAULTS),
    ).main()
