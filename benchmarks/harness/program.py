"""Run a program on ranks that are held on one core each, and read what each of them found out.

The program gets the path of a directory as its first argument and leaves `rank.N.json` there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kadril.bench.peers import Start, clean_environment
from kadril.errors import KadrilError

__all__ = [
    "ProgramError",
    "RunningProgram",
    "leave_answer",
    "read_words",
    "run_program",
    "start_on_cores",
]


# Where ranks find the harness.
BENCHMARKS = Path(__file__).resolve().parents[1]


class ProgramError(KadrilError):
    """The program failed; what it said is on stderr."""


def start_on_cores(num_ranks: int, python: str = sys.executable) -> Start:
    """Return how to start ranks by `kadril run`, each held on a core.

    Args:
        num_ranks: how many.
        python: that runs them; of an environment that sees this one's packages.
    """
    launch = ("-m", "kadril", "run", "-np", str(num_ranks), "--bind", "--no-prefix", "--")
    return Start((sys.executable, *launch, python), clean_environment(os.environ))


class RunningProgram:
    """A program on its ranks; to be used as a context, which ends it.

    Args:
        program: a Python program.
        arguments: after the directory.
        num_ranks: how many.
        start: how to start them; `start_on_cores` where None.
        prepare: is given the directory before they start.

    Attributes:
        directory: where its ranks leave their answers.
    """

    def __init__(
        self,
        program: Path,
        arguments: Sequence[str],
        *,
        num_ranks: int,
        start: Start | None = None,
        prepare: Callable[[str], None] | None = None,
    ) -> None:
        start = start_on_cores(num_ranks) if start is None else start
        self._name = program.name
        self._num_ranks = num_ranks
        self._held = tempfile.TemporaryDirectory()
        self.directory = self._held.name
        if prepare is not None:
            prepare(self.directory)
        command = [*start.command, os.fspath(program), self.directory, *arguments]
        # Ranks wait on purpose for one that is told when to begin, or measures alone.
        quiet = {"OMP_NUM_THREADS": "1", "KADRIL_STALL_CHECK": "0"}
        environment = {**start.environment, **quiet}
        paths = [str(BENCHMARKS), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._process = subprocess.Popen(command, env=environment)

    def __enter__(self) -> RunningProgram:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()  # the launcher ends its ranks
            self._process.wait()
        self._held.cleanup()

    @property
    def is_over(self) -> bool:
        """Whether the program has ended."""
        return self._process.poll() is not None

    def wait(self, timeout: float) -> list[dict[str, Any]]:
        """Wait until it has ended, and return what each rank left, by rank.

        Raises:
            ProgramError: the program failed, or took longer than `timeout` seconds.
        """
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProgramError(f"{self._name} took longer than {timeout:g} s") from None
        if code:
            raise ProgramError(f"{self._name} ended with code {code}")
        paths = [answer_path(self.directory, rank) for rank in range(self._num_ranks)]
        return [json.loads(path.read_text()) for path in paths]


def run_program(
    program: Path,
    arguments: Sequence[str],
    *,
    num_ranks: int,
    timeout: float,
    start: Start | None = None,
) -> list[dict[str, Any]]:
    """Run a program, and return what each rank left, by rank.

    Args:
        program: a Python program.
        arguments: after the directory.
        num_ranks: how many.
        timeout: in seconds.
        start: how to start them; `start_on_cores` where None.

    Raises:
        ProgramError: the program failed, or took longer than `timeout` seconds.
    """
    with RunningProgram(program, arguments, num_ranks=num_ranks, start=start) as running:
        return running.wait(timeout)


def read_words() -> argparse.Namespace:
    """Return what a rank is told that times several settings: `directory` and `rounds`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--rounds", type=int, required=True)
    return parser.parse_args()


def leave_answer(directory: str, rank: int, answer: dict[str, Any]) -> None:
    """Leave what this rank found out, for `run_program`."""
    answer_path(directory, rank).write_text(json.dumps(answer))


def answer_path(directory: str, rank: int) -> Path:
    """Return where a rank leaves its answer."""
    return Path(directory) / f"rank.{rank}.json"
