"""Nothing is left behind, however the end comes (F16, F17, F37)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from launch_playground import Launched, Playground, eventually

from kadril.launch.local.leftovers import end_leftovers, find_leftovers, remove_directory

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108

# A rank with children of every kind: in its group, behind a shell, in a session of its own, in its
# session with an empty environment; all deaf to polite signals.
FAMILY = """
    trap '' TERM INT HUP
    sleep 1001.$1 &
    bash -c "trap '' TERM; sleep 1002.$1; true" &
    setsid sleep 1003.$1 &
    env -i sleep 1004.$1 &
    echo family
    sleep 1005.$1
    true
"""


class Sleepers:
    """Finds processes `sleep <seconds>.<number>`, since some have no environment to be known by."""

    def __init__(self) -> None:
        self.number = str(random.randrange(10**9, 10**10))

    def pids(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                program, *words = path.read_bytes().decode(errors="replace").split("\0")
                if program == "sleep" and words[0].endswith("." + self.number):
                    found.append(int(path.parent.name))
        return found


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    made = Sleepers()
    yield made
    for pid in made.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start_family(playground: Playground, sleepers: Sleepers) -> Launched:
    launched = playground.start("-np", "2", "bash", "-c", FAMILY, "bash", sleepers.number)
    launched.await_output(rb"family\n", 2)
    assert eventually(lambda: len(sleepers.pids()) == 10)
    return launched


def guardian_of(playground: Playground) -> int:
    (guardian,) = [pid for pid, text in playground.processes().items() if "leftovers.py" in text]
    return guardian


def all_gone(playground: Playground, sleepers: Sleepers) -> bool:
    return eventually(lambda: not sleepers.pids() and not playground.litter(), timeout=2.0)


def test_sigkill_of_the_launcher_ends_everybody(playground: Playground, sleepers: Sleepers) -> None:
    launched = start_family(playground, sleepers)
    assert list(playground.runtime_directory.iterdir())
    launched.send(signal.SIGKILL)
    assert all_gone(playground, sleepers)


def test_sigkill_of_the_launcher_ends_stopped_ranks(
    playground: Playground, sleepers: Sleepers
) -> None:
    launched = start_family(playground, sleepers)
    for pid in {*sleepers.pids(), *playground.processes()}:
        if pid not in (launched.pid, guardian_of(playground)):
            os.kill(pid, signal.SIGSTOP)
    launched.send(signal.SIGKILL)
    assert all_gone(playground, sleepers)


def test_guardian_is_deaf_to_what_ends_others(playground: Playground, sleepers: Sleepers) -> None:
    launched = start_family(playground, sleepers)
    guardian = guardian_of(playground)
    assert eventually(lambda: ignores(guardian, signal.SIGQUIT))
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guardian, signum)
    launched.send(signal.SIGKILL)
    assert all_gone(playground, sleepers)


def ignores(pid: int, signum: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")]
    return bool(int(mask, 16) >> (signum - 1) & 1)


def test_ranks_die_with_the_launcher_even_without_a_guardian(playground: Playground) -> None:
    launched = playground.start("-np", "2", "sh", "-c", "echo ready; exec sleep 1000")
    launched.await_output(rb"ready\n", 2)
    os.kill(guardian_of(playground), signal.SIGKILL)
    launched.send(signal.SIGKILL)
    assert eventually(lambda: not playground.processes(), timeout=2.0)
    for directory in playground.runtime_directory.iterdir():  # only the guardian could have
        remove_directory(directory)


def test_job_goes_on_without_its_guardian(playground: Playground) -> None:
    program = "import signal; print('ready'); signal.sigwait([signal.SIGUSR1])"
    launched = playground.start("-np", "1", sys.executable, "-c", program)
    launched.await_output(rb"ready\n")
    os.kill(guardian_of(playground), signal.SIGKILL)
    launched.send(signal.SIGTERM)
    assert launched.finish().code == 143


def test_children_that_outlive_their_rank_are_ended_and_named(
    playground: Playground, sleepers: Sleepers
) -> None:
    script = "setsid sleep 1006.$1 & env -i sleep 1007.$1 & echo done"
    result = playground.run("-np", "2", "bash", "-c", script, "bash", sleepers.number)
    assert result.code == 0
    assert not sleepers.pids()
    assert sorted(line.partition("left behind")[2] for line in result.report) == [
        f" by rank 0: sleep 1006.{sleepers.number}",
        f" by rank 1: sleep 1006.{sleepers.number}",
        f": sleep 1007.{sleepers.number}",
        f": sleep 1007.{sleepers.number}",
    ]


def test_children_of_a_failed_rank_are_ended(playground: Playground, sleepers: Sleepers) -> None:
    script = "trap '' TERM; sleep 1008.$1 & [ $KADRIL_RANK = 1 ]"
    words = ("--kill-grace", "0.2", "bash", "-c", script, "bash", sleepers.number)
    result = playground.run("-np", "2", *words)
    assert result.code == 1
    assert not sleepers.pids()


def test_error_in_the_launcher_itself_ends_everybody(
    playground: Playground, sleepers: Sleepers
) -> None:
    # Such as: the tenth rank cannot be started, since the limit on processes is reached.
    program = """
        import os, sys
        from kadril.launch.launcher import Guardian, Job, RunOptions, SignalInbox, Supervisor
        from kadril.launch.local.local_host import LocalHost, RankStart
        options = RunOptions(("bash", "-c", sys.argv[1], "bash", sys.argv[2]), 2)
        job = Job(2)
        with SignalInbox() as inbox, Guardian(job) as guardian, job:
            with Supervisor(options, inbox) as supervisor:
                output = supervisor.output
                host = LocalHost(job.id, guardian, supervisor.selector, output, output.notice)
                supervisor.add(host)
                for rank in range(2):
                    variables = {**os.environ, **job.identity(rank, rank, 2)}
                    host.start(RankStart(rank, options.command, variables))
                sys.stdin.read()
                raise ZeroDivisionError
    """
    script = playground.write("broken.py", program)
    process = subprocess.Popen(
        [sys.executable, script, FAMILY, sleepers.number],
        env=playground.environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert eventually(lambda: len(sleepers.pids()) == 10)
    _, err = process.communicate(timeout=20)
    assert b"ZeroDivisionError" in err
    assert not sleepers.pids()
    assert not playground.litter()


def test_helpers_that_leave_by_themselves_are_left_in_peace(playground: Playground) -> None:
    # The resource tracker of multiprocessing outlives its rank by a moment, to clean up after it.
    program = """
        import os, subprocess, sys
        helper = "import os, sys; sys.stdin.read(); print('helper cleans up')"
        subprocess.Popen([sys.executable, "-c", helper], stdin=subprocess.PIPE)
        os._exit(0)
    """
    result = playground.run("-np", "2", playground.write("helper.py", program))
    assert (result.code, result.report) == (0, [])
    assert sorted(result.out.splitlines()) == [b"[0] helper cleans up", b"[1] helper cleans up"]


def test_launcher_inside_a_rank(playground: Playground) -> None:
    # The inner job has an id of its own, so the outer launcher cannot find its ranks; they must end
    # with their own launcher.
    inner = f"{sys.executable} -m kadril run -np 2 sh -c 'echo inner; exec sleep 1000'"
    launched = playground.start("-np", "1", "sh", "-c", f"exec {inner}")
    launched.await_output(rb"\[0\] \[\d\] inner\n", 2)
    assert len(list(playground.runtime_directory.iterdir())) == 2
    launched.send(signal.SIGKILL)
    assert eventually(lambda: not playground.litter(), timeout=3.0)


def test_fifty_crashes_and_relaunches_leave_nothing(playground: Playground) -> None:
    # SIGKILL of the launcher at a random moment: before, while and after ranks start.
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    shared_memory = set(SHARED_MEMORY.iterdir())
    for batch in range(10):
        batch_of_five = [playground.start("-np", "2", "sleep", "1000") for _ in range(5)]
        for launched in batch_of_five:
            time.sleep(chance.uniform(0.0, 0.12))
            launched.send(signal.SIGKILL)
            launched.process.wait()
        assert eventually(lambda: not playground.litter(), timeout=5.0), (
            f"round {batch}, seed {seed}"
        )
    assert playground.run("-np", "2", "echo", "alive").code == 0
    added = set(SHARED_MEMORY.iterdir()) - shared_memory
    # The test kit keeps the directories of its MPI jobs there, which it may start or end meanwhile.
    ours = [path for path in added if "kadril" in path.name]
    assert not [path for path in ours if not path.name.startswith("kadril-mpi-")]


def test_twenty_launchers_at_the_same_time(playground: Playground) -> None:
    script = 'echo "$KADRIL_JOB $KADRIL_RANK"; [ -S "${KADRIL_RENDEZVOUS#unix:}" ]'
    launched = [playground.start("-np", "2", "sh", "-c", script) for _ in range(20)]
    results = [one.finish() for one in launched]
    assert [result.code for result in results] == [0] * 20
    jobs = []
    for result in results:
        words = [line.split() for line in sorted(result.out.splitlines())]
        assert [word[2] for word in words] == [b"0", b"1"]
        assert words[0][1] == words[1][1]
        jobs.append(words[0][1])
    assert len(set(jobs)) == 20
    assert not playground.litter()


@pytest.mark.parametrize("code", [0, 3])
def test_directory_is_gone_when_the_launcher_returns(playground: Playground, code: int) -> None:
    # Not a moment later: whoever waits for the launcher may look.
    kept = playground.directory / "kept"
    kept.touch()
    script = 'cd "${KADRIL_SECRET_FILE%/*}"; mkdir -p deep/er; ln -s "$1" link; exit $2'
    words = ("sh", "-c", script, "sh", str(kept.parent), str(code))
    assert playground.run("-np", "1", *words).code == code
    assert playground.litter() == []
    assert kept.exists()


def test_search_finds_only_the_job_that_is_asked_for() -> None:
    # A job whose id begins like another's is another job.
    environment = {**os.environ, "KADRIL_JOB": "feedbeef01", "KADRIL_RANK": "5"}
    process = subprocess.Popen(["sleep", "1000"], env=environment)
    try:
        assert eventually(lambda: len(find_leftovers("feedbeef01")) == 1)
        (found,) = find_leftovers("feedbeef01")
        assert (found.pid, found.rank, found.command) == (process.pid, "5", "sleep 1000")
        assert find_leftovers("feedbeef") == []
        assert find_leftovers("") == []
        assert end_leftovers("feedbeef") == []
        assert process.poll() is None
        assert end_leftovers("feedbeef01") == [found]
        assert process.wait(5) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_search_finds_a_process_that_loads_its_next_program(tmp_path: Path) -> None:
    """A process that loads has no environment: one in its own session was missed, and lived on."""
    script = tmp_path / "again.sh"
    script.write_text(f"exec sh {script}\n")
    process = subprocess.Popen(
        ["sh", str(script)],
        env={**os.environ, "KADRIL_JOB": "feedbeef02"},
        start_new_session=True,
    )
    try:
        for _ in range(300):
            assert [each.pid for each in find_leftovers("feedbeef02")] == [process.pid]
    finally:
        process.kill()
        process.wait()
