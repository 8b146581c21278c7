"""Jobs of real processes: what the driver makes of ranks that answer, refuse, disagree, die."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kadril
from kadril.bench.job import Job, JobError, TaskError
from kadril.bench.peers import Start
from kadril.bench.task import Task

TASK = Task("gloo", "allreduce", 4, num_calls=1, num_samples=2, touch=False, pinned=False)

# Starts two ranks, as a launcher would, and waits for both.
LAUNCHER = """
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, sys.argv[1], str(r), *sys.argv[2:]]) for r in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""

# Speaks as a rank does; what it does with a task is filled in.
RANK = """
import os, signal, sys, time
from kadril.bench.link import LinkLost, connect
rank, address = int(sys.argv[1]), sys.argv[-2]
{before}
link = connect(address)
link.send({hello})
try:
    while (message := link.receive())["do"] != "quit":
        if message["do"] == "rest":
            link.send({{"seconds": [], "error": "", "idle_cpu": 0.25, "idle_wall": 2.0}})
            continue
        answer = {{"seconds": [], "error": "", "idle_cpu": 0.0, "idle_wall": 0.0}}
{work}
        link.send(answer)
except LinkLost:
    pass
"""

HELLO = '{"rank": rank, "size": 2, "pid": os.getpid(), "versions": {"gloo": "gloo 7"}}'

MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[MakeJob]:
    jobs: list[Job] = []

    def make(work: str = "pass", *, before: str = "", hello: str = HELLO) -> Job:
        program = tmp_path / "rank.py"
        body = textwrap.indent(textwrap.dedent(work), " " * 8)
        program.write_text(RANK.format(before=before, hello=hello, work=body))
        environment = {**os.environ, "PYTHONPATH": str(Path(kadril.__file__).parents[1])}
        command = (sys.executable, "-c", LAUNCHER, str(program))
        jobs.append(Job("gloo", Start(command, environment), 2))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def test_a_sample_is_that_of_the_slowest_rank(make_job: MakeJob) -> None:
    job = make_job("answer['seconds'] = [0.1, 0.4] if rank == 0 else [0.2, 0.3]")
    job.await_ranks()
    assert job.do(TASK) == [0.2, 0.4]
    assert job.versions == {"gloo": "gloo 7"}


def test_the_task_arrives_as_it_was_sent(make_job: MakeJob) -> None:
    job = make_job("answer['error'] = repr(sorted(message.items()))")
    job.await_ranks()
    with pytest.raises(TaskError) as caught:
        job.do(TASK)
    assert str(caught.value) == repr(sorted({"do": "measure", **TASK.to_json()}.items()))


def test_idle_time_is_added_up_over_ranks(make_job: MakeJob) -> None:
    job = make_job()
    job.await_ranks()
    job.rest()
    job.rest()
    assert (job.idle_cpu, job.idle_wall) == (1.0, 8.0)


def test_where_all_ranks_refuse_the_job_goes_on(make_job: MakeJob) -> None:
    job = make_job(
        """
        if message["collective"] == "reduce":
            answer["error"] = "there is no reduce"
        else:
            answer["seconds"] = [0.5, 0.5]
        """
    )
    job.await_ranks()
    with pytest.raises(TaskError, match="there is no reduce"):
        job.do(Task("gloo", "reduce", 4, num_calls=1, num_samples=2, touch=False, pinned=False))
    assert job.do(TASK) == [0.5, 0.5]


def test_ranks_that_disagree_are_of_no_more_use(make_job: MakeJob) -> None:
    job = make_job("answer['error'] = 'out of memory' if rank else ''")
    job.await_ranks()
    with pytest.raises(JobError, match="ranks of gloo failed: out of memory, on some ranks only"):
        job.do(TASK)


def test_a_rank_that_dies_is_told_with_its_last_words(make_job: MakeJob) -> None:
    job = make_job(
        """
        if rank == 1:
            print("farewell", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    job.await_ranks()
    with pytest.raises(JobError, match=r"is gone(.|\n)*farewell"):
        job.do(TASK)


def test_a_job_that_cannot_start(make_job: MakeJob) -> None:
    job = make_job(before="sys.exit('no such library')")
    with pytest.raises(JobError, match=r"ended with code 1 before(.|\n)*no such library"):
        job.await_ranks()


def test_a_rank_that_says_why_it_cannot_work(make_job: MakeJob) -> None:
    job = make_job(hello='{"error": "another MPI"}')
    with pytest.raises(JobError, match="another MPI"):
        job.await_ranks()


def test_ranks_with_the_same_number(make_job: MakeJob) -> None:
    # So it is where mpirun belongs to one MPI and mpi4py has loaded another: every rank is rank 0.
    job = make_job(hello='{"rank": 0, "size": 1, "pid": 1, "versions": {}}')
    with pytest.raises(JobError, match=r"call themselves \[0\]"):
        job.await_ranks()
