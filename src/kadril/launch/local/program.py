"""The program that ranks run: which Python runs it, and whether it is there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kadril.launch.options import LaunchError

__all__ = ["check_program", "with_python"]

PYTHONS = ("python", "python3")


def with_python(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command to start: this Python runs a `.py` file and a bare `python` or `python3`.

    The first of that name on PATH is another one wherever the environment of kadril is not
    activated, and has neither kadril nor torch.
    """
    program = command[0]
    if program in PYTHONS:
        return (sys.executable, *command[1:])
    return (sys.executable, *command) if program.endswith(".py") else tuple(command)


def check_program(command: Sequence[str]) -> None:
    """Make sure that a `.py` file is there.

    Raises:
        LaunchError: there is no such file.
    """
    program = command[0]
    if program.endswith(".py") and not Path(program).is_file():
        raise LaunchError(f"no such file: {program!r} (in {Path.cwd()})", exit_code=127)
