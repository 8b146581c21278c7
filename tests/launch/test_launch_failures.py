"""Failures of ranks: who failed first, why, with which code, and what becomes of the rest (F05)."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from launch_playground import Playground, eventually

# Rank 1 ends in the way that is asked for, once rank 0 waits; the others wait for ever.
ENDS = """
    import ctypes, os, signal, sys, time
    how = sys.argv[1]
    if os.environ["KADRIL_RANK"] != "1":
        signal.pause()
    print("last words", file=sys.stderr)
    if how == "raise": raise ValueError("the cause")
    if how == "sys.exit": sys.exit(3)
    if how == "text": sys.exit("a message")
    if how == "os._exit": os._exit(4)
    if how == "abort": os.abort()
    if how == "segfault": ctypes.string_at(0)
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("how", "code", "said", "tail"),
    [
        ("raise", 1, "exit code 1", b"ValueError: the cause"),
        ("sys.exit", 3, "exit code 3", b"last words"),
        ("text", 1, "exit code 1", b"a message"),
        ("os._exit", 4, "exit code 4", b"last words"),
        ("abort", 134, "killed by signal 6 (SIGABRT)", b"Fatal Python error: Aborted"),
        ("segfault", 139, "killed by signal 11 (SIGSEGV)", b"Fatal Python error: Segmentation"),
        ("kill", 137, "killed by signal 9 (SIGKILL)", b"last words"),
    ],
)
def test_every_way_to_fail(
    playground: Playground, how: str, code: int, said: str, tail: bytes
) -> None:
    result = playground.run("-np", "3", playground.write("ends.py", ENDS), how)
    assert result.code == code
    assert result.report[0] == f"rank 1 failed first: {said}"
    assert result.report[-2:] == [
        "rank 0: stopped by the launcher (SIGTERM)",
        "rank 2: stopped by the launcher (SIGTERM)",
    ]
    summary = result.err[result.err.index(b"kadril: rank 1 failed first") :]
    assert b"\n    last words\n" in summary
    assert tail in summary
    assert (b"dmesg" in summary) == (how == "kill")


def test_only_the_last_lines_are_repeated(playground: Playground) -> None:
    program = "import sys; [print(i, file=sys.stderr) for i in range(100)]; sys.exit(1)"
    result = playground.run("-np", "1", sys.executable, "-c", program)
    summary = result.err[result.err.index(b"kadril: rank 0 failed first") :]
    assert [int(line) for line in summary.splitlines()[2:]] == list(range(80, 100))


def test_silent_failure_is_said_to_be_silent(playground: Playground) -> None:
    result = playground.run("-np", "1", "false")
    assert result.report == ["rank 0 failed first: exit code 1", "it wrote nothing to stderr"]


def test_all_good_is_silent(playground: Playground) -> None:
    result = playground.run("-np", "4", "true")
    assert (result.code, result.out, result.err) == (0, b"", b"")


@pytest.mark.parametrize("round_number", range(3))
def test_survivors_of_a_killed_rank_are_not_the_cause(
    playground: Playground, round_number: int
) -> None:
    # Survivors notice within microseconds and die too: the order of exits must be exact.
    program = """
        import os, select, signal, sys, time
        from pathlib import Path
        if os.environ["KADRIL_RANK"] == "2":
            Path("pid.part").write_text(str(os.getpid()))
            os.rename("pid.part", "pid")
            while len(list(Path().glob("watching.*"))) < 3:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        while not Path("pid").exists():
            time.sleep(0.001)
        peer = os.pidfd_open(int(Path("pid").read_text()))
        Path(f"watching.{os.getpid()}").touch()
        select.select([peer], [], [])
        os.write(2, b"kadril.errors.PeerLost: rank 2 is gone\\n")
        os._exit(1)
    """
    result = playground.run("-np", "4", playground.write("lost.py", program))
    assert result.code == 137
    assert result.report[0] == "rank 2 failed first: killed by signal 9 (SIGKILL)"
    others = [line for line in result.report if line.startswith(("rank 0:", "rank 1:", "rank 3:"))]
    assert len(others) == 3
    for line in others:
        assert "having lost a peer" in line or "stopped by the launcher" in line


def test_echo_that_leaves_before_its_cause(playground: Playground) -> None:
    # A rank that raises tells its peers at once, and is itself slow to leave (torch unloads, data
    # loaders are joined). Its peer has left with PeerLost long before.
    program = """
        import atexit, os, sys, time
        from pathlib import Path
        def wait_for(name):
            while not Path(name).exists():
                time.sleep(0.001)
        if os.environ["KADRIL_RANK"] == "0":
            Path("pid.part").write_text(str(os.getpid()))
            os.rename("pid.part", "pid")
            wait_for("revoked")
            os.write(2, b"kadril.errors.PeerLost: rank 1 has left\\n")
            os._exit(1)
        def leave():
            Path("revoked").touch()
            stat = Path("/proc", Path("pid").read_text(), "stat")
            while stat.read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.001)
            time.sleep(0.1)
        wait_for("pid")
        atexit.register(leave)
        raise ValueError("the cause")
    """
    result = playground.run("-np", "2", playground.write("echo.py", program))
    assert result.code == 1
    assert result.report[0] == "rank 1 failed first: exit code 1"
    assert b"    ValueError: the cause" in result.err
    assert result.report[-1].startswith("rank 0: exit code 1, having lost a peer, 0.")


def test_echo_without_a_cause_still_stops_the_job(playground: Playground) -> None:
    # Rank 1 leaves early and content; the rank that misses it is the only one that fails.
    program = """
        import os, signal, sys
        if os.environ["KADRIL_RANK"] == "0":
            sys.exit("kadril.errors.PeerLost: rank 1 has left")
        if os.environ["KADRIL_RANK"] == "2":
            signal.pause()
    """
    start = time.monotonic()
    result = playground.run("-np", "3", playground.write("early.py", program))
    assert time.monotonic() - start < 5.0
    assert result.code == 1
    assert result.report[0] == "rank 0 failed first: exit code 1"
    assert "rank 2: stopped by the launcher (SIGTERM)" in result.report
    assert any(line.startswith("rank 1: exit code 0") for line in result.report)


def test_stubborn_ranks_are_killed_after_the_kill_grace(playground: Playground) -> None:
    program = """
        import os, signal, sys
        from pathlib import Path
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(f"ready.{os.environ['KADRIL_RANK']}").touch()
        if os.environ["KADRIL_RANK"] == "0":
            while not Path("ready.1").exists():
                pass
            sys.exit(5)
        while True:
            signal.pause()
    """
    start = time.monotonic()
    result = playground.run("-np", "2", "--kill-grace", "0.3", playground.write("s.py", program))
    assert time.monotonic() - start >= 0.3
    assert result.code == 5
    assert result.report[-1] == "rank 1: stopped by the launcher (SIGKILL)"


def test_rank_with_time_to_say_goodbye(playground: Playground) -> None:
    program = """
        import os, signal, sys
        from pathlib import Path
        def goodbye(*_):
            print("saved")
            sys.exit(0)
        if os.environ["KADRIL_RANK"] == "0":
            while not Path("ready").exists():
                pass
            sys.exit(5)
        signal.signal(signal.SIGTERM, goodbye)
        Path("ready").touch()
        signal.pause()
    """
    result = playground.run("-np", "2", playground.write("s.py", program))
    assert result.code == 5
    assert result.out == b"[1] saved\n"
    assert result.report[-1] == "rank 1: exit code 0, after SIGTERM from the launcher"


def test_stopped_rank_is_ended_at_once(playground: Playground) -> None:
    # SIGTERM alone waits at a stopped process until somebody continues it.
    script = playground.write("ends.py", ENDS)
    launched = playground.start("-np", "2", "-v", "sh", "-c", f"echo $$; kill -STOP $$; {script}")
    launched.await_output(rb"\[\d\] \d+\n", 2)
    pids = {int(line[:3].strip(b"[] ")): int(line[4:]) for line in launched.out.splitlines()}
    states = [f"/proc/{pid}/stat" for pid in pids.values()]
    assert eventually(lambda: all(state_of(path) == "T" for path in states))
    start = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    result = launched.finish()
    assert time.monotonic() - start < 3.0
    assert result.code == 137
    assert result.report[-1] == "rank 0: stopped by the launcher (SIGTERM)"


def state_of(path: str) -> str:
    return Path(path).read_text().rpartition(")")[2].split()[0]


# Rank 1 is killed between two collectives, or once its record says that it waits in one.
LAST_CALL = """
    import os, signal, sys, threading
    from pathlib import Path
    import numpy as np
    import kadril
    from kadril.observe.flight_record import read_record

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def die_waiting():
        while not read_record(Path(os.environ["KADRIL_RECORD_FILE"])).waits:
            os.sched_yield()
        die()

    world = kadril.init()
    kadril.allreduce(np.ones(3), name="loss")
    if world.rank == 1:
        threading.Thread(target=die_waiting if sys.argv[1] == "within" else die).start()
        if sys.argv[1] == "within":
            world.transport.broadcast(np.ones(5), 0, name="weights")
    signal.pause()
"""


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("between", "its last collective, which had ended, was allreduce(3 elements, name='loss')"),
        ("within", "it was waiting in broadcast(float64[5], root=0, name='weights')"),
    ],
)
def test_a_killed_rank_leaves_its_last_call(playground: Playground, when: str, said: str) -> None:
    """A rank that is killed writes no traceback: where it was, the launcher tells by its record."""
    result = playground.run("-np", "2", playground.write("last.py", LAST_CALL), when)
    assert result.report[0] == "rank 1 failed first: killed by signal 9 (SIGKILL)"
    assert said in "\n".join(result.report)
