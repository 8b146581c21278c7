"""Real launchers for the tests: started, read from, and searched for after their end."""

from __future__ import annotations

import dataclasses
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import kadril.launch

__all__ = ["Launched", "Playground", "Result", "eventually"]

SOURCE = Path(kadril.launch.__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of a launcher: its exit code and output."""

    code: int
    out: bytes
    err: bytes

    @property
    def report(self) -> list[str]:
        """The launcher's own lines."""
        lines = self.err.decode(errors="replace").splitlines()
        return [line.removeprefix("kadril: ") for line in lines if line.startswith("kadril: ")]


class Launched:
    """A launcher that runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.out = b""
        self.err = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def await_output(self, pattern: bytes, num_matches: int = 1, timeout: float = 20.0) -> None:
        """Read stdout and stderr until the pattern was found so often in both together."""
        deadline = time.monotonic() + timeout
        while len(re.findall(pattern, self.out + self.err)) < num_matches:
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern!r} within {timeout} s in {self.out!r} {self.err!r}"
            self.read_some(left)

    def read_some(self, timeout: float) -> bool:
        """Read what there is, if something comes in time."""
        pipes = [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe is not None]
        ready, _, _ = select.select(pipes, [], [], timeout)
        for pipe in ready:
            data = os.read(pipe.fileno(), 1 << 16)
            assert data, f"the launcher ended: {self.out!r} {self.err!r}"
            if pipe is self.process.stdout:
                self.out += data
            else:
                self.err += data
        return bool(ready)

    def finish(self, timeout: float = 20.0) -> Result:
        """Wait for the end."""
        out, err = self.process.communicate(timeout=timeout)
        return Result(self.process.returncode, self.out + (out or b""), self.err + (err or b""))


class Playground:
    """A private directory for jobs, and a mark by which all processes of a test are known."""

    def __init__(self, directory: Path, runtime_directory: Path) -> None:
        self.directory = directory
        self.runtime_directory = runtime_directory
        self.mark = uuid.uuid4().hex
        self.launched: list[Launched] = []

    def write(self, name: str, program: str) -> str:
        """Write a program of the ranks."""
        path = self.directory / name
        path.write_text(textwrap.dedent(program))
        return str(path)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of a launcher."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KADRIL_", "OMP_", "XDG_"))
        }
        return {
            **inherited,
            "PYTHONPATH": str(SOURCE),
            "TMPDIR": str(self.runtime_directory),
            # The guardian gets it too, since it is not a variable of kadril.
            "LAUNCH_TEST_MARK": self.mark,
            **(extra or {}),
        }

    def start(
        self,
        *words: str | Path,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        verb: str = "run",
    ) -> Launched:
        """Start `kadril run` with these words, or another launcher."""
        process = subprocess.Popen(
            [sys.executable, "-m", "kadril", verb, *words],
            env=self.environment(env),
            cwd=self.directory,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.launched.append(Launched(process))
        return self.launched[-1]

    def run(self, *words: str | Path, env: Mapping[str, str] | None = None) -> Result:
        """Run `kadril run` with these words to its end."""
        return self.start(*words, env=env).finish()

    def processes(self) -> dict[int, str]:
        """The processes of this test that live, with their commands."""
        return marked_processes(f"LAUNCH_TEST_MARK={self.mark}")

    def litter(self) -> list[str]:
        """All that is left: processes and files."""
        # What goes away while it is looked at is not left; `walk` passes over it.
        files = [
            f"{place}/{name}"
            for place, directories, names in os.walk(self.runtime_directory)
            for name in (*directories, *names)
        ]
        return [f"process {pid}: {command}" for pid, command in self.processes().items()] + files

    def close(self) -> None:
        """End what runs, and fail if anything is left."""
        for launched in self.launched:
            if launched.process.poll() is None:
                launched.process.kill()
            launched.process.wait()
            for pipe in (launched.process.stdout, launched.process.stderr):
                if pipe is not None:
                    pipe.close()
        clean = eventually(lambda: not self.litter(), timeout=5.0)
        left = self.litter()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.runtime_directory)
        assert clean, f"left behind: {left}"


def marked_processes(variable: str) -> dict[int, str]:
    """Processes that live and were started with this variable, as NAME=value."""
    found = {}
    for directory in Path("/proc").iterdir():
        if not directory.name.isdecimal():
            continue
        try:
            if variable.encode() in (directory / "environ").read_bytes().split(b"\0"):
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(directory.name)] = command.decode(errors="replace")
        except OSError:
            continue
    return found


def eventually(condition: Callable[[], bool], timeout: float = 10.0) -> bool:
    """Look until the condition holds; False if it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
