"""Order of measurements. The jobs here measure nothing: what is tested is who is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast

import pytest

from kadril.bench.job import Job, JobError, TaskError
from kadril.bench.options import BenchOptions
from kadril.bench.peers import JOB_ENGINES
from kadril.bench.rounds import Case, Measurements, Rounds, list_cases
from kadril.bench.task import Task


class ScriptedJob:
    """Notes its tasks in a log that all jobs share, and takes a fixed time for each call."""

    def __init__(
        self, name: str, log: list[Task], call_seconds: float = 1e-3, error: Exception | None = None
    ) -> None:
        self.name = name
        self.engines = JOB_ENGINES[name]
        self.log = log
        self.call_seconds = call_seconds
        self.error = error
        self.is_closed = False

    def do(self, task: Task) -> list[float]:
        assert not self.is_closed
        self.log.append(task)
        if self.error is not None:
            raise self.error
        return [self.call_seconds] * task.num_samples

    def close(self) -> None:
        self.is_closed = True


def run(jobs: list[ScriptedJob], options: BenchOptions, said: list[str]) -> Measurements:
    by_name = cast("Mapping[str, Job]", {job.name: job for job in jobs})
    return Rounds(by_name, options, said.append).run()


def small(**changes: object) -> BenchOptions:
    values = {"collectives": ("allreduce",), "sizes": (4,), "num_rounds": 2, **changes}
    return BenchOptions(**values)  # type: ignore[arg-type]


def test_cases_are_listed_once() -> None:
    options = BenchOptions(num_ranks=4, collectives=("allgatherv", "barrier"), sizes=(4, 8, 64))
    assert list_cases(options) == [
        Case("allgatherv", 16),
        Case("allgatherv", 64),
        Case("barrier", 0),
    ]


def test_engines_take_turns_and_another_begins_each_round() -> None:
    log: list[Task] = []
    jobs = [ScriptedJob("kadril", log), ScriptedJob("gloo", log)]
    run(jobs, small(num_rounds=3, settings=("pinned",)), [])
    turns = [task.engine for task in log if not task.check]
    assert [turns[:4], turns[4:8], turns[8:]] == [
        ["kadril", "zero-copy", "copy", "gloo"],
        ["zero-copy", "copy", "gloo", "kadril"],
        ["copy", "gloo", "kadril", "zero-copy"],
    ]


def test_every_engine_is_checked_once_and_measured_in_every_round() -> None:
    log: list[Task] = []
    measured = run([ScriptedJob("kadril", log)], small(sizes=(4, 1024)), [])
    counts = Counter((task.engine, task.num_bytes, task.pinned, task.check) for task in log)
    assert set(counts.values()) == {1, 2}
    assert all(count == (1 if key[-1] else 2) for key, count in counts.items())
    assert all(len(rounds) == 2 for rounds in measured.samples.values())


def test_short_calls_go_in_batches_and_long_ones_alone() -> None:
    for call_seconds, num_calls in ((1e-6, 100), (1e-3, 50), (0.2, 1)):
        log: list[Task] = []
        run([ScriptedJob("kadril", log, call_seconds)], small(), [])
        assert {task.num_calls for task in log if not task.check} == {num_calls}


def test_a_touched_array_is_used_once() -> None:
    log: list[Task] = []
    run([ScriptedJob("kadril", log, 1e-6)], small(sizes=(1 << 20,)), [])
    assert {(task.touch, task.num_calls) for task in log} == {(True, 1)}


def test_the_number_of_samples_follows_from_the_time() -> None:
    def num_samples(seconds: float, call_seconds: float) -> int:
        log: list[Task] = []
        options = small(sizes=(1 << 20,), seconds=seconds)
        run([ScriptedJob("kadril", log, call_seconds)], options, [])
        (number,) = {task.num_samples for task in log if not task.check}
        return number

    assert num_samples(1.0, 0.1) == 9
    assert num_samples(0.01, 10.0) == 3, "never too few to have a median"
    assert num_samples(10.0, 1e-6) == 200


def test_nothing_is_copied_where_nothing_moves() -> None:
    log: list[Task] = []
    jobs = [ScriptedJob("kadril", log), ScriptedJob("mpich", log)]
    run(jobs, small(collectives=("barrier",)), [])
    assert {task.engine for task in log} == {"kadril", "mpich"}


def test_a_collective_that_a_peer_lacks_is_noted_and_the_rest_goes_on() -> None:
    log: list[Task] = []
    peer = ScriptedJob("gloo", log, error=TaskError("no such collective"))
    measured = run([ScriptedJob("kadril", log), peer], small(), said := [])
    assert measured.missing == {"gloo allreduce": "no such collective"}
    assert {key.engine for key in measured.samples} == {"kadril", "zero-copy", "copy"}
    assert sum(task.engine == "gloo" for task in log) == 1, "it is not asked again"
    assert not peer.is_closed
    assert "no such collective" in said


def test_a_peer_that_fails_is_ended_and_the_rest_goes_on() -> None:
    log: list[Task] = []
    peer = ScriptedJob("openmpi", log, error=JobError("a rank died"))
    measured = run([ScriptedJob("kadril", log), peer], small(), [])
    assert measured.missing == {"openmpi": "a rank died"}
    assert peer.is_closed
    assert {key.engine for key in measured.samples} == {"kadril", "zero-copy", "copy"}


@pytest.mark.parametrize("error", [TaskError("wrong result"), JobError("a rank died")])
def test_where_kadril_fails_there_is_no_report(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        run([ScriptedJob("kadril", [], error=error)], small(), [])
