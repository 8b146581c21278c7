"""Discovery scripts that are edited, slow, or left alone, and the jobs that run them."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elastic_job import STEPS_BETWEEN_COMMITS, ends, with_script
from launch_playground import Playground, eventually

from kadril.launch.elastic.host_slots import Discovery
from kadril.launch.options import LaunchError

PROGRAM = Path(__file__).with_name("elastic_program.py")


class Running:
    """A discovery script, and the event loop that it is part of."""

    def __init__(self, script: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.said: list[str] = []
        self.discovery = Discovery("job", str(script), 1, self.selector, self.said.append)

    def turn_until(self, condition: Callable[[], bool]) -> None:
        """Run the loop until something holds; each turn of it must be short."""
        deadline = time.monotonic() + 20.0
        while not condition():
            self.turn()
            assert time.monotonic() < deadline, self.said

    def turn(self) -> None:
        self.discovery.tick(time.monotonic())
        for key, _ in self.selector.select(0.1):
            key.data()

    def close(self) -> None:
        self.discovery.close()
        assert not self.selector.get_map()
        self.selector.close()


Run = Callable[[Path], Running]


@pytest.fixture
def run() -> Iterator[Run]:
    """Return what begins to run a script."""
    made: list[Running] = []

    def begin(script: Path) -> Running:
        made.append(Running(script))
        return made[-1]

    yield begin
    for running in made:
        running.close()


def write(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_script_that_is_edited_leaves_the_hosts_as_they_are(tmp_path: Path, run: Run) -> None:
    """A running job died of a script that was open for writing, or away, at the wrong moment."""
    script = write(tmp_path / "hosts.sh", "echo localhost:2")
    running = run(script)
    running.turn_until(lambda: running.discovery.num_slots == 2)
    with script.open("a"):  # the kernel runs no program that somebody writes
        running.turn_until(lambda: len(running.said) == 1)
    script.unlink()
    running.turn_until(lambda: len(running.said) == 2)
    assert [text.partition(": ")[2] for text in running.said] == [
        "Text file busy; the hosts stay as they are",
        "No such file or directory; the hosts stay as they are",
    ]
    write(script, "echo localhost:3")
    running.turn_until(lambda: running.discovery.num_slots == 3)


def test_a_script_that_cannot_be_run_at_first_is_an_error(tmp_path: Path, run: Run) -> None:
    running = run(tmp_path / "hosts.sh")
    with pytest.raises(LaunchError, match=r"cannot run .*: No such file or directory; is it exec"):
        running.discovery.tick(time.monotonic())


@pytest.mark.timeout(40)
def test_a_script_that_closes_its_output_first_freezes_nobody(tmp_path: Path, run: Run) -> None:
    """The launcher waited for its end, and for nothing else meanwhile."""
    os.mkfifo(tmp_path / "go")
    text = f"echo localhost:2; exec >&-; read line < {tmp_path}/go; true"
    script = write(tmp_path / "hosts.sh", text)
    running = run(script)
    running.turn_until(lambda: running.discovery._program.output == b"localhost:2\n")
    for _ in range(5):  # in which the end of its output is heard
        running.turn()
    assert running.discovery.num_slots is None
    with (tmp_path / "go").open("w"):  # waits for the script to read
        pass
    running.turn_until(lambda: running.discovery.num_slots == 2)


def test_a_script_whose_child_keeps_its_output_is_heard(tmp_path: Path, run: Run) -> None:
    script = write(tmp_path / "hosts.sh", f"sleep 100 & echo $! > {tmp_path}/pid; echo localhost:2")
    running = run(script)
    running.turn_until(lambda: running.discovery.num_slots == 2)
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_slow_script_is_ended_with_what_it_has_started(tmp_path: Path, run: Run) -> None:
    """The script alone was killed; what it waited for lived on."""
    script = write(tmp_path / "hosts.sh", f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 100'; true")
    running = run(script)
    pid = tmp_path / "pid"
    running.turn_until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    running.discovery.close()
    assert eventually(lambda: not Path(f"/proc/{int(pid.read_text())}").exists())


def test_a_script_that_prints_for_ever_is_ended(tmp_path: Path, run: Run) -> None:
    """The launcher read on as long as the script wrote, and did nothing else."""
    script = write(tmp_path / "hosts.sh", "echo localhost:2")
    running = run(script)
    running.turn_until(lambda: running.discovery.num_slots == 2)
    write(tmp_path / "fresh.sh", f"echo $$ > {tmp_path}/pid; exec yes localhost:3").rename(script)
    running.turn_until(lambda: bool(running.said))
    assert [text.partition(" ")[2] for text in running.said] == [
        "prints more than 1 MiB, and was ended; the hosts stay as they are"
    ]
    assert running.discovery.num_slots == 2
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()
    write(tmp_path / "fresh.sh", "echo localhost:4").rename(script)
    running.turn_until(lambda: running.discovery.num_slots == 4)


def test_a_slow_resolver_holds_up_nobody(tmp_path: Path, run: Run) -> None:
    """The event loop asked it for each name, at each listing, and stood still meanwhile."""
    os.mkfifo(tmp_path / "go")
    lookup = write(tmp_path / "lookup.sh", f"echo $@ >> {tmp_path}/asked; cat {tmp_path}/go")
    listing = f"echo >> {tmp_path}/runs; echo node7.cluster:2; echo localhost:1"
    running = run(write(tmp_path / "hosts.sh", listing))
    running.discovery._names.command = [str(lookup)]
    runs = tmp_path / "runs"
    running.turn_until(lambda: runs.exists() and len(runs.read_text()) >= 3)
    assert running.discovery.num_slots is None  # a part of the ranks would be started
    with (tmp_path / "go").open("w") as go:
        go.write("here\n")
    running.turn_until(lambda: running.discovery.num_slots == 3)
    runs.unlink()
    running.turn_until(lambda: runs.exists() and len(runs.read_text()) >= 3)
    assert (tmp_path / "asked").read_text() == "node7.cluster\n"


def test_a_resolver_that_fails_leaves_the_hosts_as_they_are(tmp_path: Path, run: Run) -> None:
    """An error of the resolver was taken for "another host", and healthy ranks were sent away."""
    lookup = write(tmp_path / "lookup.sh", "echo here")
    script = write(tmp_path / "hosts.sh", "echo node7.cluster:2; echo localhost:1")
    running = run(script)
    running.discovery._names.command = [str(lookup)]
    running.turn_until(lambda: running.discovery.num_slots == 3)
    write(tmp_path / "fresh.sh", "echo unknown").rename(lookup)
    write(tmp_path / "fresh.sh", "echo node8.cluster:4; echo localhost:1").rename(script)
    running.turn_until(lambda: bool(running.said))
    assert running.said[0].endswith(
        "hosts.sh names node8.cluster, and the resolver does not say whether that is this host;"
        " the slots stay as they are"
    )
    assert running.discovery.num_slots == 3
    write(tmp_path / "fresh.sh", "echo node8.cluster:1").rename(script)  # at most
    running.turn_until(lambda: running.discovery.num_slots == 1)


def test_a_launcher_that_is_killed_leaves_no_script_behind(playground: Playground) -> None:
    """Such a script has a session of its own, and nobody knew it as a part of the job."""
    flags = ["--min-np", "2", "--max-np", "2", *with_script(playground, 2).split()]
    notes = playground.directory / "notes"
    words = [PROGRAM, notes, "12", str(STEPS_BETWEEN_COMMITS), "await:5:7"]
    launched = playground.start(*flags, "--verbose", *words)
    launched.await_output(rb"generation 0: 2 ranks", timeout=60.0)
    script = playground.directory / "hosts.sh"
    fresh = write(playground.directory / "fresh.sh", f"echo > {notes}/asked; sleep 1000; true")
    fresh.rename(script)
    assert eventually((notes / "asked").exists)
    launched.process.kill()
    assert eventually(lambda: not playground.processes()), playground.processes()


def test_a_script_that_runs_at_the_end_is_not_told_of(playground: Playground) -> None:
    flags = ["--min-np", "2", "--max-np", "2", *with_script(playground, 2).split()]
    notes = playground.directory / "notes"
    words = [PROGRAM, notes, "12", str(STEPS_BETWEEN_COMMITS), "hold:5:0"]
    launched = playground.start(*flags, "--verbose", *words)
    launched.await_output(rb"generation 0: 2 ranks", timeout=60.0)
    fresh = write(playground.directory / "fresh.sh", f"echo > {notes}/asked; sleep 1000; true")
    fresh.rename(playground.directory / "hosts.sh")
    assert eventually((notes / "asked").exists)
    (notes / "go").touch()
    result = launched.finish(timeout=60.0)
    assert result.code == 0
    assert len(ends(result)) == 2
    assert b"left behind" not in result.err


# A new process of the second generation and later does not come to init() while there is `late`.
COMES_LATE = """
    import os, sys, time
    from pathlib import Path
    import numpy as np
    import kadril
    from kadril.elastic import ObjectState, run

    notes = Path(sys.argv[1])

    def train(state):
        while not (notes / "end").exists():
            kadril.allreduce(np.zeros(1), name="step")
            time.sleep(0.01)
            state.commit()

    if (notes / "late").exists():
        (notes / f"late.{os.getpid()}").touch()
        while (notes / "late").exists():
            time.sleep(0.01)
    kadril.init()
    run(train)(ObjectState(step=0))
"""


def test_a_launcher_that_waits_does_not_spin(playground: Playground) -> None:
    """After --elastic-timeout it took a core, which the ranks that it waited for needed."""
    program = playground.write("late.py", COMES_LATE)
    flags = ["--min-np", "2", "--max-np", "2", "--elastic-timeout", "2", "--spares", "0"]
    notes = playground.directory / "notes"
    words = [*flags, *with_script(playground, 2).split(), "--verbose", program, notes]
    launched = playground.start(*words)
    launched.await_output(rb"generation 0: 2 ranks", timeout=60.0)
    (notes / "late").touch()
    (notes / "slots").write_text("localhost:1\n")
    launched.await_output(rb"waiting for more, 2 s at most", timeout=60.0)
    (notes / "slots").write_text("localhost:2\n")
    assert eventually(lambda: len(list(notes.glob("late.*"))) == 2, timeout=60.0)  # one was ended
    begin, used = time.monotonic(), cpu_seconds(launched.pid)
    assert eventually(lambda: time.monotonic() > begin + 1.0)
    used = cpu_seconds(launched.pid) - used
    # A start of the script takes 0.01 s; spinning gets 0.2 s of a core that others want too.
    assert used < 0.1 * (time.monotonic() - begin)
    launched.process.kill()
    assert eventually(lambda: not playground.processes())


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, without that of those it has started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
