"""Crews of real processes: what the driver makes of ranks that answer, refuse, disagree, die."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kadril
from kadril.bench.crew import Crew, CrewError, TaskError
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

MakeCrew = Callable[..., Crew]


@pytest.fixture
def make_crew(tmp_path: Path) -> Iterator[MakeCrew]:
    crews: list[Crew] = []

    def make(work: str = "pass", *, before: str = "", hello: str = HELLO) -> Crew:
        program = tmp_path / "rank.py"
        body = textwrap.indent(textwrap.dedent(work), " " * 8)
        program.write_text(RANK.format(before=before, hello=hello, work=body))
        environment = {**os.environ, "PYTHONPATH": str(Path(kadril.__file__).parents[1])}
        command = (sys.executable, "-c", LAUNCHER, str(program))
        crews.append(Crew("gloo", Start(command, environment), 2))
        return crews[-1]

    yield make
    for crew in crews:
        crew.close()


def test_a_sample_is_that_of_the_slowest_rank(make_crew: MakeCrew) -> None:
    crew = make_crew("answer['seconds'] = [0.1, 0.4] if rank == 0 else [0.2, 0.3]")
    crew.await_ranks()
    assert crew.do(TASK) == [0.2, 0.4]
    assert crew.versions == {"gloo": "gloo 7"}


def test_the_task_arrives_as_it_was_sent(make_crew: MakeCrew) -> None:
    crew = make_crew("answer['error'] = repr(sorted(message.items()))")
    crew.await_ranks()
    with pytest.raises(TaskError) as caught:
        crew.do(TASK)
    assert str(caught.value) == repr(sorted({"do": "measure", **TASK.to_json()}.items()))


def test_idle_time_is_added_up_over_ranks(make_crew: MakeCrew) -> None:
    crew = make_crew()
    crew.await_ranks()
    crew.rest()
    crew.rest()
    assert (crew.idle_cpu, crew.idle_wall) == (1.0, 8.0)


def test_where_all_refuse_the_crew_goes_on(make_crew: MakeCrew) -> None:
    crew = make_crew(
        """
        if message["collective"] == "reduce":
            answer["error"] = "there is no reduce"
        else:
            answer["seconds"] = [0.5, 0.5]
        """
    )
    crew.await_ranks()
    with pytest.raises(TaskError, match="there is no reduce"):
        crew.do(Task("gloo", "reduce", 4, num_calls=1, num_samples=2, touch=False, pinned=False))
    assert crew.do(TASK) == [0.5, 0.5]


def test_ranks_that_disagree_are_of_no_more_use(make_crew: MakeCrew) -> None:
    crew = make_crew("answer['error'] = 'out of memory' if rank else ''")
    crew.await_ranks()
    with pytest.raises(CrewError, match="crew of gloo failed: out of memory, on some ranks only"):
        crew.do(TASK)


def test_a_rank_that_dies_is_told_with_its_last_words(make_crew: MakeCrew) -> None:
    crew = make_crew(
        """
        if rank == 1:
            print("farewell", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    crew.await_ranks()
    with pytest.raises(CrewError, match=r"is gone(.|\n)*farewell"):
        crew.do(TASK)


def test_a_crew_that_cannot_start(make_crew: MakeCrew) -> None:
    crew = make_crew(before="sys.exit('no such library')")
    with pytest.raises(CrewError, match=r"ended with code 1 before(.|\n)*no such library"):
        crew.await_ranks()


def test_a_rank_that_says_why_it_cannot_work(make_crew: MakeCrew) -> None:
    crew = make_crew(hello='{"error": "another MPI"}')
    with pytest.raises(CrewError, match="another MPI"):
        crew.await_ranks()


def test_ranks_with_the_same_number(make_crew: MakeCrew) -> None:
    # So it is where mpirun belongs to one MPI and mpi4py has loaded another: every rank is rank 0.
    crew = make_crew(hello='{"rank": 0, "size": 1, "pid": 1, "versions": {}}')
    with pytest.raises(CrewError, match=r"call themselves \[0\]"):
        crew.await_ranks()
