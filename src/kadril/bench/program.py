"""Run a program on ranks that are held on one core each, and read what each of them found out.

The program gets the path of a directory as its first argument and leaves `rank.N.json` there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kadril.bench.peers import Start, clean_environment
from kadril.errors import KadrilError

__all__ = ["ProgramError", "leave_answer", "run_program"]


class ProgramError(KadrilError):
    """The program failed; what it said is on stderr."""


def run_program(
    program: Path,
    arguments: Sequence[str],
    *,
    num_ranks: int,
    timeout: float,
    start: Start | None = None,
) -> list[dict[str, Any]]:
    """What each rank left, by rank.

    Args:
        program: a Python program.
        arguments: after the directory.
        num_ranks: how many.
        timeout: in seconds.
        start: how to start them; by `kadril run`, each held on a core, where None.

    Raises:
        ProgramError: the program failed, or took longer than `timeout` seconds.
    """
    if start is None:
        launch = ["-m", "kadril", "run", "-np", str(num_ranks), "--bind", "--no-prefix", "--"]
        start = Start((sys.executable, *launch, sys.executable), clean_environment(os.environ))
    environment = {**start.environment, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as directory:
        command = [*start.command, os.fspath(program), directory, *arguments]
        with subprocess.Popen(command, env=environment) as process:
            try:
                code = process.wait(timeout)
            except BaseException as reason:
                process.terminate()  # the launcher ends its ranks
                process.wait()
                if isinstance(reason, subprocess.TimeoutExpired):
                    raise ProgramError(f"{program.name} took longer than {timeout:g} s") from None
                raise
        if code:
            raise ProgramError(f"{program.name} ended with code {code}")
        paths = [answer_path(directory, rank) for rank in range(num_ranks)]
        return [json.loads(path.read_text()) for path in paths]


def leave_answer(directory: str, rank: int, answer: dict[str, Any]) -> None:
    """Leave what this rank found out, for `run_program`."""
    answer_path(directory, rank).write_text(json.dumps(answer))


def answer_path(directory: str, rank: int) -> Path:
    """Where a rank leaves its answer."""
    return Path(directory) / f"rank.{rank}.json"
