"""`kadril.run`: a function on many ranks, what it returned, and what becomes of its errors."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from launch_playground import Launched, Playground, Result, eventually

from kadril import ConfigError, LaunchError, run
from kadril.function_job import serialization
from kadril.function_job.caller import to_words


def python(
    playground: Playground,
    program: str,
    *,
    name: str = "caller.py",
    env: dict[str, str] | None = None,
) -> Launched:
    """Start a program that calls `kadril.run`."""
    process = subprocess.Popen(
        [sys.executable, playground.write(name, program)],
        env=playground.environment(env),
        cwd=playground.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    playground.launched.append(Launched(process))
    return playground.launched[-1]


def finish(launched: Launched) -> Result:
    return launched.finish(timeout=60)


# In this process


def test_results_come_by_rank(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(playground.runtime_directory))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert run(os.getenv, ("KADRIL_RANK",), np=3) == ["0", "1", "2"]
    assert run(math.gcd, (12, 18)) == [6], "one rank if it is not said"
    assert run(int, ("ff",), {"base": 16}, 2) == [255, 255], "np is the fourth argument"
    assert run(os.getenv, ["COLOUR"], num_proc=2, env={"COLOUR": "red"}) == ["red", "red"]


def test_an_exception_comes_back_with_the_traceback_of_its_rank(
    playground: Playground, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(playground.runtime_directory))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(LaunchError) as caught:
        run(Path("/no/such/file").read_text, np=2)
    message = str(caught.value)
    assert "of 2 failed first: exit code 1" in message
    assert "Traceback (most recent call last)" in message
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'" in message
    assert "function_job" not in message, "frames of ours are of no interest"
    assert caught.value.exit_code == 1
    assert "FileNotFoundError" in capfd.readouterr().err, "and it is on stderr, as from a script"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"np": 0}, ConfigError, "at least 1"),
        ({"np": 2, "num_proc": 3}, ConfigError, "names of one thing"),
        ({"colour": "red"}, TypeError, "no option 'colour'"),
        ({"timeline_filname": "x"}, TypeError, "did you mean 'timeline_filename'"),
        ({"check_build": True}, TypeError, "no option 'check_build'"),
        ({"np": 2, "min_np": 2}, ConfigError, "what belongs to them cannot be used here"),
        ({"use_mpi": True}, ConfigError, "--mpi cannot be used here"),
        ({"hosts": "a:two"}, ConfigError, "NAME:SLOTS"),
        ({"fusion_threshold_mb": "big"}, ConfigError, "invalid int value: 'big'"),
        ({"compat": "horovid"}, ConfigError, "did you mean horovod"),
        ({"env": {"KADRIL_RANK": "1"}}, ConfigError, "KADRIL_RANK is set by the launcher"),
        ({"env": {"KADRIL_PATIENCE": "0"}}, ConfigError, "KADRIL_PATIENCE must be more than 0"),
        ({"executable": "no-such-python"}, LaunchError, "cannot start 'no-such-python'"),
    ],
)
def test_options_that_make_no_sense(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(os.getpid, **options)  # type: ignore[arg-type]


def test_what_is_no_function() -> None:
    with pytest.raises(TypeError, match="takes a function, got 3"):
        run(3)  # type: ignore[arg-type]


def test_keywords_become_flags() -> None:
    assert to_words(
        {
            "transport": "shm",
            "bind": True,
            "stall_check": False,
            "timeline_mark_cycles": None,
            "verbose": 2,
            "no_prefix": False,
            "use_gloo": None,
            "mpi_args": "--map-by x",
            "cooldown_range": (1, 2),
        }
    ) == [
        "--transport=shm",
        "--bind",
        "--no-stall-check",
        "--verbose",
        "--mpi-args=--map-by x",
        "--blacklist-cooldown-range",
        "1",
        "2",
    ]


def test_what_cannot_travel_is_said_before_the_start() -> None:
    with pytest.raises(LaunchError, match=r"the function getpid .* cannot go to another process"):
        run(os.getpid, (threading.Lock(),))


def test_without_cloudpickle_only_names_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # as if it were not installed
    assert (
        serialization.load(
            serialization.pack(serialization.Call(math.gcd, (2, 4), {}), "it")
        ).make()
        == 2
    )
    local = lambda: 3  # noqa: E731
    with pytest.raises(LaunchError, match=r"pip install 'kadril\[notebook\]'"):
        serialization.pack(local, "it")
    monkeypatch.setattr(test_what_is_no_function, "__module__", "__main__")
    with pytest.raises(LaunchError, match=r"is defined in __main__.*notebook"):
        serialization.pack({"deep": [test_what_is_no_function]}, "it")


# In programs of their own

SCRIPT = """
    import sys
    import kadril

    OFFSET = 100

    class Thing:
        def __init__(self, value):
            self.value = value

    def work(thing, *, twice=False):
        import numpy
        world = kadril.init()
        total = numpy.full(2, float(world.rank + 1))
        world.transport.allreduce(total)
        print("on", world.rank)
        return Thing(thing.value + OFFSET + int(total[0]) + twice * 1000)

    if __name__ == "__main__":
        things = kadril.run(work, (Thing(7),), {"twice": True}, np=2)
        print([thing.value for thing in things], {type(thing) is Thing for thing in things})
        print(sorted({"torch", "numpy"} & set(sys.modules)))
"""


def test_functions_and_classes_of_a_script(playground: Playground) -> None:
    result = finish(python(playground, SCRIPT))
    assert result.code == 0, result.err
    assert sorted(result.out.splitlines()) == sorted(
        [b"[0] on 0", b"[1] on 1", b"[1110, 1110] {True}", b"[]"]
    )


def test_functions_of_a_prompt(playground: Playground) -> None:
    # As in a notebook: there is no file that ranks could import.
    lines = """
        import kadril
        base = 5
        def add(x):
            return base + x + kadril.init().rank

        kadril.run(add, (1,), np=2)
        kadril.run(lambda: kadril.init().size, np=1)
    """
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=textwrap.dedent(lines),
        env=playground.environment(),
        cwd=playground.directory,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[6, 7]\n[1]\n", done.stderr


def test_modules_beside_the_script_are_found(playground: Playground) -> None:
    playground.write("helper_of_script.py", "def double(x):\n    return 2 * x\n")
    program = """
        import kadril, helper_of_script
        if __name__ == "__main__":
            print(kadril.run(helper_of_script.double, (4,), np=2))
    """
    elsewhere = playground.directory / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, playground.write("caller.py", program)],
        env=playground.environment(),
        cwd=elsewhere,
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == b"[8, 8]\n", done.stderr


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9 (SIGKILL)"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import sys; sys.exit(0)", "rank 1 ended well and left no result"),
        (
            "import threading; return threading.Lock()",
            "what work returned on rank 1 cannot go to another process",
        ),
    ],
)
def test_ends_without_a_result(playground: Playground, body: str, message: str) -> None:
    program = f"""
        import os, kadril
        def work():
            if os.environ["KADRIL_RANK"] == "1":
                {body}
        try:
            kadril.run(work, np=2, kill_grace=1)
        except kadril.LaunchError as error:
            print(error)
    """
    result = finish(python(playground, program))
    assert message in result.out.decode(), result.err


def test_from_a_thread_of_a_program_with_threads(playground: Playground) -> None:
    # A launcher in this process would fork with threads about, which Python warns of since 3.12,
    # and could receive no signals.
    program = """
        import threading, warnings
        import kadril
        warnings.simplefilter("error")
        results = []
        thread = threading.Thread(target=lambda: results.append(kadril.run(int, np=2)))
        thread.start()
        thread.join()
        print(results)
    """
    result = finish(python(playground, program))
    assert result.out == b"[[0, 0]]\n", result.err


SLEEPERS = """
    import signal, time
    import kadril

    def sleep():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("asleep")
        time.sleep(60)

    try:
        kadril.run(sleep, np=2)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interrupt_ends_the_ranks(playground: Playground) -> None:
    launched = python(playground, SLEEPERS)
    launched.await_output(rb"\[\d\] asleep", 2, timeout=60.0)
    launched.send(signal.SIGINT)
    result = finish(launched)
    assert result.code == 0
    assert result.out.endswith(b"interrupted\n")
    assert "interrupted by SIGINT" in result.report


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_caller_that_was_killed(playground: Playground, signum: int) -> None:
    launched = python(playground, SLEEPERS)
    launched.await_output(rb"\[\d\] asleep", 2, timeout=60.0)
    launched.send(signum)
    launched.process.wait()
    assert eventually(lambda: not playground.litter(), timeout=40.0), playground.litter()


def test_the_call_is_in_a_private_place_and_gone_afterwards(playground: Playground) -> None:
    program = """
        import os, stat
        from pathlib import Path
        import kadril
        def look():
            directory = Path(os.environ["KADRIL_SECRET_FILE"]).parent
            modes = {p.name: oct(stat.S_IMODE(p.stat().st_mode)) for p in directory.iterdir()}
            words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
            return oct(stat.S_IMODE(directory.stat().st_mode)), modes["call"], b"TOKEN" in words
        print(kadril.run(look, np=1, env={"API_TOKEN": "TOKEN"}))
    """
    result = finish(python(playground, program))
    assert result.out == b"[('0o700', '0o600', False)]\n", result.err


def test_a_rank_trusts_no_open_directory(playground: Playground) -> None:
    """Files in a directory that others can write to are not unpacked."""
    directory = playground.directory / "open"
    directory.mkdir(mode=0o755)
    (directory / "call").write_bytes(
        serialization.pack(serialization.Call(print, ("run!",), {}), "it")
    )
    done = subprocess.run(
        [sys.executable, "-c", "from kadril.function_job.worker import main; main()"],
        env=playground.environment(
            {"KADRIL_SECRET_FILE": str(directory / "secret"), "KADRIL_RANK": "0"}
        ),
        capture_output=True,
        timeout=20,
    )
    assert b"is open to other users" in done.stderr
    assert done.stdout == b""


def test_output_and_other_flags(playground: Playground) -> None:
    program = """
        import os, kadril
        def work():
            print("hello")
            return os.environ["KADRIL_TRANSPORT"], os.environ["KADRIL_CONNECT_TIMEOUT"]
        print(kadril.run(work, np=2, use_gloo=True, start_timeout=30, output_filename="logs",
                         verbose=True, disable_cache=True))
    """
    result = finish(python(playground, program))
    assert result.out.endswith(b"[('c10d:gloo', '30.0'), ('c10d:gloo', '30.0')]\n"), result.err
    assert (playground.directory / "logs" / "rank.1" / "stdout").read_text() == "hello\n"
    assert any(line.startswith("--disable-cache has no effect") for line in result.report)
    assert any("rank 1 is process" in line for line in result.report)
