"""How the tests of this folder run an example."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

__all__ = ["EXAMPLES", "run_alone", "run_example"]

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    name: str,
    *arguments: str,
    num_ranks: int = 2,
    options: tuple[str, ...] = (),
    timeout: float = 100.0,
) -> list[str]:
    """What an example prints on some ranks, without the numbers of the ranks."""
    launch = [sys.executable, "-m", "kadril", "run", "-np", str(num_ranks), "--no-prefix"]
    done = subprocess.run(
        [*launch, *options, "--", sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_alone(name: str, *arguments: str) -> list[str]:
    """What an example prints in a world of one: this process, which has imported torch already."""
    program = str(EXAMPLES / name)
    output = io.StringIO()
    with mock.patch.object(sys, "argv", [program, *arguments]), contextlib.redirect_stdout(output):
        runpy.run_path(program, run_name="__main__")
    return output.getvalue().splitlines()
