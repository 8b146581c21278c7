"""A C program, compiled against the installed library, speaks with its peers."""

from __future__ import annotations

import ctypes
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kadril import _native, capi

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("this Python has no shared library that a C program could run")
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    path = tmp_path_factory.mktemp("capi") / "collectives"
    source = str(HERE / "collectives.c")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [compiler, *flags, source, "-o", str(path), *capi.cflags(), *capi.libs(), "-lpthread"],
        check=True,
    )
    return path


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_c_program_runs_every_operation(program: Path, num_ranks: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kadril", "run", "-np", str(num_ranks), str(program)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(num_ranks):
        assert f"rank {rank} of {num_ranks}: all well" in done.stdout


def test_every_function_of_the_header_is_exported() -> None:
    library = ctypes.CDLL(_native.__file__)
    header = Path(capi.cflags()[0].removeprefix("-I")) / "kadril.h"
    text = header.read_text()
    names = {
        word.split("(")[0]
        for word in text.replace("\n", " ").split()
        if word.startswith(("kadril_", "horovod_")) and "(" in word and "()" not in word
    }
    assert {"kadril_init", "horovod_init", "kadril_join_async"} <= names
    missing = sorted(name for name in names if not hasattr(library, name))
    assert missing == []


def test_flags_can_be_asked_for_in_a_shell() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kadril.capi", "--cflags"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shlex.split(done.stdout) == capi.cflags()
