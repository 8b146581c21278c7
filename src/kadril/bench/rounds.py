"""Order of the measurements: all engines take turns on each task, for several rounds.

    round 1   allreduce 4 B   pinned     kadril  zero-copy  copy  gloo  openmpi
                              unpinned   kadril  zero-copy  copy  gloo  openmpi
              allreduce 64 K  pinned     ...
    round 2   allreduce 4 B   pinned     zero-copy  copy  gloo  openmpi  kadril

See `turns.py` for the order of a round, and why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kadril.bench.collectives import COLLECTIVES, whole_bytes
from kadril.bench.job import Job, JobError, TaskError
from kadril.bench.options import BenchOptions, format_size
from kadril.bench.task import Task
from kadril.bench.turns import order_of_round

__all__ = ["Case", "Key", "Measurements", "Rounds", "list_cases"]

# Calls shorter than this are timed in batches, so that neither the clock nor the barrier before
# them weighs: as many calls as fit into the time, and at most so many.
BATCH_SECONDS = 0.05
MAX_CALLS = 100

MIN_SAMPLES, MAX_SAMPLES = 3, 200
NUM_PROBES = 3
WRITE_BANDWIDTH = 4e9  # bytes per second; how long a touch takes, roughly
BARRIER_SECONDS = 50e-6


class Case(NamedTuple):
    """One measurement that every engine makes: a collective at one size."""

    collective: str
    num_bytes: int


class Key(NamedTuple):
    """Key of one series of samples."""

    collective: str
    num_bytes: int
    setting: str
    engine: str


class Measurements(NamedTuple):
    """All that was measured.

    Attributes:
        tasks: how each series was measured.
        samples: seconds per call; one list per round.
        missing: engine, or engine and collective: why there is nothing.
    """

    tasks: dict[Key, Task]
    samples: dict[Key, list[list[float]]]
    missing: dict[str, str]


def list_cases(options: BenchOptions) -> list[Case]:
    """Return every collective with every size, each once."""
    cases = [
        Case(name, whole_bytes(COLLECTIVES[name], size, options.num_ranks))
        for name in options.collectives
        for size in options.sizes
    ]
    return list(dict.fromkeys(cases))


class Rounds:
    """The rounds of one run."""

    def __init__(
        self, jobs: Mapping[str, Job], options: BenchOptions, tell: Callable[[str], None]
    ) -> None:
        self._options = options
        self._tell = tell
        self._jobs = {engine: job for job in jobs.values() for engine in job.engines}
        self._measured = Measurements({}, {}, {})

    def run(self) -> Measurements:
        """Measure everything.

        Raises:
            JobError: the job of kadril failed. Where that of a peer does, it is noted, and the
                others continue.
            TaskError: a task of kadril failed in its job; that of a peer is noted.
        """
        num_rounds = self._options.num_rounds
        for number in range(num_rounds):
            for case in list_cases(self._options):
                self._tell(
                    f"round {number + 1} of {num_rounds}: {case.collective}"
                    f" {format_size(case.num_bytes) if case.num_bytes else ''}"
                )
                for key in self._turns(case, number):
                    self._take(key)
        return self._measured

    def _turns(self, case: Case, number: int) -> Iterator[Key]:
        """Yield the engines in the order of this round, in each setting."""
        for setting in self._options.settings:
            engines = [name for name in self._jobs if applies(name, case.collective)]
            for engine in order_of_round(engines, number):
                yield Key(*case, setting, engine)

    def _take(self, key: Key) -> None:
        """Run the turn of one engine."""
        label = f"{key.engine} {key.collective}"
        if key.engine not in self._jobs or label in self._measured.missing:
            return
        job = self._jobs[key.engine]
        try:
            if key not in self._measured.tasks:
                self._measured.tasks[key] = self._plan(key, job)
            samples = job.do(self._measured.tasks[key])
        except (JobError, TaskError) as error:
            if job.name == "kadril":
                raise
            self._tell(str(error))
            if isinstance(error, JobError):
                self._measured.missing[key.engine] = str(error)
                job.close()  # what is left of it may spin
                self._jobs = {name: other for name, other in self._jobs.items() if other is not job}
            else:
                self._measured.missing[label] = str(error)
            return
        self._measured.samples.setdefault(key, []).append(samples)

    def _plan(self, key: Key, job: Job) -> Task:
        """Check the result, and find out how many samples fit into the time for one measurement."""
        touch = COLLECTIVES[key.collective].is_sized and self._options.touches(key.num_bytes)
        task = Task(
            engine=key.engine,
            collective=key.collective,
            num_bytes=key.num_bytes,
            num_calls=1,
            num_samples=NUM_PROBES,
            touch=touch,
            pinned=key.setting == "pinned",
            memory=self._options.memory,
            check=True,
        )
        call_seconds = min(job.do(task))
        num_calls = 1 if touch else clamp(BATCH_SECONDS / call_seconds, 1, MAX_CALLS)
        sample_seconds = num_calls * call_seconds + BARRIER_SECONDS
        if touch:
            sample_seconds += key.num_bytes / WRITE_BANDWIDTH
        num_samples = clamp(self._options.seconds / sample_seconds, MIN_SAMPLES, MAX_SAMPLES)
        return dataclasses.replace(task, num_calls=num_calls, num_samples=num_samples, check=False)


def applies(engine: str, collective: str) -> bool:
    """Whether an engine is measured at a collective: nothing is copied where nothing moves."""
    return COLLECTIVES[collective].is_sized or engine not in ("copy", "zero-copy")


def clamp(value: float, least: int, most: int) -> int:
    """Return a whole number between two bounds."""
    return int(min(max(value, least), most))
