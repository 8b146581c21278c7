"""The fork server: a forked rank is as one that was started, and outlives the server."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from launch_playground import Playground, eventually

from kadril.launch.forking import fork_client
from kadril.launch.forking.fork_client import ForkClient, can_fork
from kadril.launch.options import LaunchError

STARTED = 30.0  # seconds that a fork server has to load its modules

# What a program can see of how it was started.
SELF_PORTRAIT = """
    import json, os, pathlib, sys

    if __name__ == "__main__":
        main = sys.modules["__main__"]
        read = lambda path: pathlib.Path(path).read_bytes()
        word = lambda path: read(path).rstrip(b"\\0").decode().split("\\0")
        def measure(length: int): pass
        parts = {
            "annotation": repr(measure.__annotations__["length"]),
            "argv": sys.argv,
            "path": sys.path[0],
            "file": main.__file__,
            "spec": str(getattr(main, "__spec__", None)).partition("(")[0],
            "here": beside,
            "annotations": "Later" in globals(),
            "cmdline": word("/proc/self/cmdline"),
            "mine": sorted(w for w in word("/proc/self/environ") if w.startswith("KADRIL_")),
            "given": sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("KADRIL_")),
            "session": os.getsid(0) == os.getpid(),
            "parent": os.getppid(),
            "affinity": sorted(os.sched_getaffinity(0)),
            "descriptor": os.fstat(int(os.environ["KADRIL_TEST_FD"])).st_ino,
            "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
            "flags": repr(sys.flags),
            "sigint": str(__import__("signal").getsignal(2)),
        }
        print(json.dumps(parts))
"""
IMPORT = "    from beside_it import beside\n"


@dataclasses.dataclass
class Forked:
    """A forked rank, and what can be read from it."""

    pid: int
    stdout: int
    stderr: int

    def finish(self) -> tuple[int, str, str]:
        """Return how it ended, and what it wrote."""
        texts = []
        for descriptor in (self.stdout, self.stderr):
            with os.fdopen(descriptor, "rb") as pipe:
                texts.append(pipe.read().decode())
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def fork(
    client: ForkClient,
    variables: Mapping[str, str],
    inherit: Sequence[int] = (),
    cpus: set[int] = frozenset(),
) -> Forked:
    (out, out_write), (err, err_write) = os.pipe(), os.pipe()
    pid = client.fork(
        variables, stdout=out_write, stderr=err_write, inherit=inherit, processors=cpus
    )
    os.close(out_write)
    os.close(err_write)
    return Forked(pid, out, err)


@contextlib.contextmanager
def serving(words: Sequence[str], modules: Sequence[str] = ("numpy",)) -> Iterator[ForkClient]:
    with contextlib.closing(
        ForkClient([sys.executable, *words], rank_variables(), modules)
    ) as client:
        assert select.select([client], [], [], STARTED)[0]
        client.hear()
        yield client


def rank_variables(**more: str) -> dict[str, str]:
    others = {name: text for name, text in os.environ.items() if not name.startswith("KADRIL_")}
    return {**others, "PYTHONUNBUFFERED": "1", **more}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Make a program that imports what lies beside it."""
    (tmp_path / "beside_it.py").write_text("beside = __name__\n")
    path = tmp_path / "portrait.py"
    path.write_text(textwrap.dedent(IMPORT + SELF_PORTRAIT))
    return path


def portrait(text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(text)
    return found


FORMS = ["portrait.py", "-m portrait", "-u -Xdev -W error portrait.py", "links/portrait.py"]


@pytest.mark.parametrize("form", FORMS)
def test_a_forked_rank_is_as_one_that_was_started(
    program: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The same program, started by the interpreter, sees the same of itself.

    By a link, it did not find the modules that lie beside what the link leads to. Annotations were
    texts, since the file was compiled with the `__future__` imports of our module.
    """
    monkeypatch.chdir(program.parent)
    Path("links").mkdir()
    Path("links/portrait.py").symlink_to("../portrait.py")
    words = [*form.split(), "--epochs", "3"]
    (core,) = sorted(os.sched_getaffinity(0))[:1]
    read, write = os.pipe()
    variables = rank_variables(
        KADRIL_RANK="2", KADRIL_JOB="abc", KADRIL_LONG="x" * 700, KADRIL_TEST_FD=str(write)
    )
    try:
        started = subprocess.run(
            ["taskset", "-c", str(core), sys.executable, *words],
            env=variables,
            pass_fds=[write],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,
            check=True,
        )
        with serving(words) as client:
            forked = fork(client, variables, [write], {core})
            code, out, err = forked.finish()
    finally:
        os.close(read)
        os.close(write)
    assert (code, err) == (0, "")
    assert portrait(out) == portrait(started.stdout)
    assert portrait(out)["parent"] == os.getpid()
    assert len(set(portrait(out)["mine"])) == 4


ENDS = {
    "end": ("print('over')", 0),
    "exit": ("import sys; sys.exit(3)", 3),
    "text": ("raise SystemExit('no such file')", 1),
    "error": ("def step():\n    raise ValueError('of the program')\nstep()", 1),
    "chain": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('x') from e",
        1,
    ),
    "syntax": ("for", 1),
    "interrupt": ("import os, signal; os.kill(os.getpid(), signal.SIGINT); input()", -2),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    "atexit": (
        "import atexit, threading\natexit.register(print, 'last')\n"
        "wait = threading.main_thread().join\n"
        "threading.Thread(target=lambda: (wait(), print('thread'))).start()",
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_rank_ends_as_one_that_was_started(tmp_path: Path, end: str) -> None:
    """Exit codes, what it says of errors, and what it does last."""
    text, code = ENDS[end]
    path = tmp_path / "program.py"
    path.write_text(text + "\n")
    started = subprocess.run(
        [sys.executable, path],
        env=rank_variables(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    with serving([str(path)], []) as client:
        assert fork(client, rank_variables()).finish() == (code, started.stdout, started.stderr)


def test_ranks_draw_different_random_numbers(tmp_path: Path) -> None:
    """Forked ranks would all draw the same; started processes do not, nor do these."""
    path = tmp_path / "program.py"
    path.write_text("import numpy, random\nprint(numpy.random.rand(), random.random())\n")
    with serving([str(path)], ["numpy", "numpy.random"]) as client:
        lines = [fork(client, rank_variables()).finish()[1] for _ in range(3)]
    numbers = [number for line in lines for number in line.split()]
    assert len(set(numbers)) == 6


def test_modules_are_loaded_beforehand(tmp_path: Path) -> None:
    """Modules that cannot be loaded are left to the program."""
    path = tmp_path / "program.py"
    path.write_text("import sys\nprint('numpy' in sys.modules, 'broken_module' in sys.modules)\n")
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('broken')\n")
    with serving([str(path)], ["broken_module", "no_such_module", "numpy"]) as client:
        assert fork(client, rank_variables()).finish()[1] == "True False\n"


def test_a_process_with_threads_is_not_forked(tmp_path: Path) -> None:
    """A child would not have them, and may wait for what they hold."""
    (tmp_path / "with_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    with serving([str(tmp_path / "program.py")], ["with_thread"]) as client:
        assert not client.is_ready
        assert "has started threads" in client.problem


def test_threads_that_end_before_a_fork_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenBLAS has threads as soon as numpy is loaded, on machines with some cores."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    path = tmp_path / "program.py"
    path.write_text("import numpy\nx = numpy.ones((300, 300))\nprint((x @ x)[0, 0])\n")
    with serving([str(path)]) as client:
        assert client.problem == ""
        assert fork(client, rank_variables()).finish() == (0, "300.0\n", "")


WAITS = """
import os
os.write(1, b"here")
os.read(int(os.environ["KADRIL_TEST_FD"]), 1)
print("over")
"""


def test_ranks_outlive_the_fork_server(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(WAITS)
    with serving([str(path)], []) as client:
        read, write = os.pipe()
        rank = fork(client, rank_variables(KADRIL_TEST_FD=str(read)), [read])
        assert os.read(rank.stdout, 16) == b"here"
        os.kill(client.pid, signal.SIGKILL)
        assert select.select([client], [], [], 10.0)[0]
        with pytest.raises(LaunchError, match="has ended"):
            fork_and_close(client)
        assert not client.is_ready
        os.write(write, b"x")
        assert rank.finish() == (0, "over\n", "")
    os.close(read)
    os.close(write)


def fork_and_close(client: ForkClient) -> None:
    """Fork with descriptors that are closed whatever comes of it."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        client.fork(rank_variables(), stdout=null, stderr=null, inherit=(), processors=())
    finally:
        os.close(null)


def test_a_signal_finds_the_session_of_a_forked_rank(tmp_path: Path) -> None:
    """A rank was told of before it had a session: what ends a job at once did not end it."""
    path = tmp_path / "program.py"
    path.write_text("import signal\nsignal.pause()\n")
    with serving([str(path)], []) as server:
        for _ in range(5):
            rank = fork(server, rank_variables())
            os.killpg(rank.pid, signal.SIGTERM)
            assert rank.finish()[0] == -signal.SIGTERM


def test_a_fork_that_comes_too_late_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process was started in its place by then, and both ran; the server was used again."""
    monkeypatch.setattr(fork_client, "FORK_TIMEOUT", 0.5)
    path = tmp_path / "program.py"
    path.write_text("print('here')\n")
    with serving([str(path)], []) as server:
        read, write = os.pipe()
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(LaunchError, match="does not answer"):
            server.fork(rank_variables(), stdout=write, stderr=write, inherit=(), processors=())
        os.close(write)
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGCONT)
        with os.fdopen(read, "rb") as pipe:
            assert pipe.read() == b""  # read to its end, so nobody has the other end any more
        assert select.select([server], [], [], 10.0)[0]
        server.hear()
        assert not server.is_ready
        assert "does not answer" in server.problem


def test_a_rank_that_cannot_be_set_up_says_why(tmp_path: Path) -> None:
    """Nobody heard why its program never began. The next one can be forked all the same."""
    path = tmp_path / "program.py"
    path.write_text("print('here')\n")
    null = os.open(os.devnull, os.O_WRONLY)
    with serving([str(path)], []) as server:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        with pytest.raises(LaunchError, match=r"cannot fork: OSError: .*Invalid argument"):
            server.fork(rank_variables(), stdout=null, stderr=null, inherit=(), processors=[9999])
        assert Path(f"/proc/self/task/{os.getpid()}/children").read_text() == children
        assert fork(server, rank_variables()).finish() == (0, "here\n", "")
    os.close(null)


def test_ranks_are_forked_with_few_descriptors(tmp_path: Path) -> None:
    """With `ulimit -n 256` none could be: descriptors were moved to 256 and above."""
    path = tmp_path / "program.py"
    path.write_text("print('here')\n")
    with serving([str(path)], []) as server:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (64, 64))
        assert fork(server, rank_variables()).finish() == (0, "here\n", "")


def test_a_launcher_without_descriptors_starts_ranks(tmp_path: Path) -> None:
    """A launcher ended with an OSError; it is to start the rank by itself, or later."""
    path = tmp_path / "program.py"
    path.write_text("print('here')\n")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving([str(path)], []) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            with pytest.raises(LaunchError, match="Too many open files"):
                server.fork(rank_variables(), stdout=1, stderr=2, inherit=(), processors=())
            with pytest.raises(LaunchError, match="Too many open files"):
                ForkClient([sys.executable, str(path)], {}, [])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert fork(server, rank_variables()).finish() == (0, "here\n", "")


LAUNCHER = """
    import os, select, sys
    from kadril.launch.forking.fork_client import ForkClient

    client = ForkClient([sys.executable, sys.argv[1]], dict(os.environ), [])
    select.select([client], [], [])
    client.hear()
    variables = {**os.environ, "KADRIL_TEST_FD": sys.argv[2]}
    pid = client.fork(variables, stdout=1, stderr=2, inherit=[int(sys.argv[2])], processors=())
    os.write(1, f"{pid} {client.pid}\\n".encode())  # in one piece: the rank writes there too
    os.kill(os.getpid(), 9)
"""


def test_ranks_and_server_end_with_the_launcher(tmp_path: Path) -> None:
    """The launcher may be killed, too; whoever reads the output of the rank then reads its end."""
    path = tmp_path / "program.py"
    path.write_text(WAITS)
    read, write = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LAUNCHER), path, str(read)],
        pass_fds=[read],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = re.findall(r"(\d+) (\d+)$", done.stdout, re.MULTILINE)[0]
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout=10.0)
    assert "over" not in done.stdout
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("words", "can"),
    [
        (["train.py", "-x"], True),
        (["-m", "package.train"], True),
        (["-u", "-W", "ignore", "-Xdev", "train.py"], True),
        (["-c", "pass"], False),
        (["-i", "train.py"], False),
        (["-m"], False),
        (["-X", "train.py"], False),
        ([], False),
    ],
)
def test_only_python_programs_can_be_forked(words: list[str], can: bool) -> None:
    assert can_fork([sys.executable, *words]) is can
    assert not can_fork(["/usr/bin/another_python", *words])


TRAINING = """
    import sys
    forked = "torch" in sys.modules
    import os, signal, time
    import numpy as np
    import torch
    import kadril.torch as hvd

    hvd.init()
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=0.125)
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0)

    @hvd.elastic.run
    def train(state):
        while state.step < 6:
            if (state.step, os.environ["KADRIL_GENERATION"], hvd.rank()) == (3, "0", 1):
                while not os.path.exists(sys.argv[1]):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.ones(4, 2)).mean().backward()
            optimizer.step()
            state.step += 1
            state.commit()

    train(state)
    print("end", hvd.rank(), forked, os.getppid(), model.weight.tolist(), flush=True)
"""


def test_a_lost_rank_of_a_torch_job_is_forked(playground: Playground) -> None:
    """The new rank has torch from its first line on, and ends with the weights of the others."""
    script = playground.write("train.py", TRAINING)
    ready = playground.directory / "ready"
    words = ["-np", "2", "--min-np", "2", "--spares", "0", "--no-prefix", "-v", script, ready]
    # torch leaves its cache behind.
    launched = playground.start(*words, env={"TORCHINDUCTOR_CACHE_DIR": str(ready.parent)})
    launched.await_output(rb"is ready to fork ranks", timeout=60.0)
    ready.touch()
    result = launched.finish(timeout=60.0)
    assert result.code == 0, result.err.decode()
    assert "generation 1: 2 ranks, 1 of them new" in result.report
    ends = re.findall(r"end (\d) (\w+) (\d+) (.*)", result.out.decode())
    weights = {f"{[[1.0 - 6 * 0.125] * 2]}"}
    assert {weight for *_, weight in ends} == weights
    assert {(rank, forked) for rank, forked, *_ in ends} == {("0", "False"), ("1", "True")}
    assert {int(parent) for _, _, parent, _ in ends} == {launched.pid}
