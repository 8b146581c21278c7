"""Programs in C and C++, compiled against the installed library and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from kadril import capi

__all__ = ["HERE", "compile_program", "find_compiler", "run"]

HERE = Path(__file__).parent
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def find_compiler(source: str) -> list[str]:
    """The compiler for a source, with the oldest standard that the headers promise."""
    is_c = source.endswith(".c")
    names = ("cc", "gcc", "clang") if is_c else ("c++", "g++", "clang++")
    found = next(filter(None, map(shutil.which, names)), None)
    assert found is not None, names
    # Horovod's Tensor::dtype() returns a const value, and so do adapters.
    return [found, "-std=c11"] if is_c else [found, "-std=c++17", "-Wno-ignored-qualifiers"]


def compile_program(source: str, directory: Path, *flags: str) -> Path:
    """A program of this directory; skips where Python cannot run inside one."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("this Python has no shared library that a C program could run")
    path = directory / Path(source).stem
    subprocess.run(
        [
            *find_compiler(source),
            *WARNINGS,
            str(HERE / source),
            "-o",
            str(path),
            *capi.cflags(),
            *capi.libs(),
            *flags,
            "-lpthread",
        ],
        check=True,
    )
    return path


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that must succeed."""
    environment = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **variables,
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
