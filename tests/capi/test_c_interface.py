"""A C program, compiled against the installed library, speaks with its peers."""

from __future__ import annotations

import ctypes
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from capi_programs import HERE, compile_program, run

from kadril import _native, capi


@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_c_program_runs_every_operation(tmp_path: Path, num_ranks: int) -> None:
    program = compile_program("collectives.c", tmp_path)
    done = run([sys.executable, "-m", "kadril", "run", "-np", str(num_ranks), str(program)])
    for rank in range(num_ranks):
        assert f"rank {rank} of {num_ranks}: all well" in done.stdout


def test_a_c_program_makes_whole_requests(tmp_path: Path) -> None:
    """Groups, results in memory of the program's own, kinds of failure, and cancelling."""
    program = compile_program("requests.c", tmp_path)
    done = run([sys.executable, "-m", "kadril", "run", "-np", "2", str(program)])
    for rank in range(2):
        assert f"rank {rank} of 2: all well" in done.stdout


def test_an_adapter_in_cpp_runs_every_operation(tmp_path: Path) -> None:
    """The C++ layer of Horovod: its types are subclassed as framework adapters do it."""
    program = compile_program("adapter.cc", tmp_path)
    done = run([sys.executable, "-m", "kadril", "run", "-np", "2", str(program)])
    assert sorted(done.stdout.splitlines()) == ["[0] rank 0: all well", "[1] rank 1: all well"]


def test_communicators_of_mpi(tmp_path: Path) -> None:
    """Communicators come from C, with the program's MPI, and by ctypes, with that of mpi4py."""
    bin_directory = Path(sys.executable).parent
    mpirun, mpi_include = bin_directory / "mpirun", Path(sys.prefix) / "include"
    if not (mpirun.exists() and (mpi_include / "mpi.h").exists()):
        pytest.skip("no MPI with its headers in this environment")
    library = Path(sys.prefix) / "lib"
    flags = [f"-I{mpi_include}", f"-L{library}", f"-Wl,-rpath,{library}", "-lmpi"]
    program = compile_program("communicators.c", tmp_path, *flags)
    launcher = [str(mpirun), "-n", "2", "--oversubscribe"]
    for command in ([str(program)], [sys.executable, str(HERE / "multi_comm.py")]):
        done = run([*launcher, *command], KADRIL_PYTHON=sys.executable)
        assert sorted(done.stdout.split("\n")) == ["", "rank 0: all well", "rank 1: all well"]


def test_every_function_of_the_header_is_exported() -> None:
    library = ctypes.CDLL(_native.__file__)
    header = Path(capi.cflags()[0].removeprefix("-I")) / "kadril.h"
    text = header.read_text()
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    names = set(re.findall(r"\b(?:kadril|horovod)_\w+(?=\()", code))
    assert {"kadril_init", "horovod_init", "kadril_grouped_allreduce_async"} <= names
    missing = sorted(name for name in names if not hasattr(library, name))
    assert missing == []


def test_every_status_of_the_header_has_its_code_in_python() -> None:
    header = Path(capi.cflags()[0].removeprefix("-I")) / "kadril.h"
    (body,) = re.findall(r"typedef enum \{([^}]*)\} kadril_status;", header.read_text())
    names = re.findall(r"KADRIL_(\w+)", re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL))
    assert names == [status.name for status in capi.Status]
    assert [status.value for status in capi.Status] == list(range(len(names)))


def test_flags_can_be_asked_for_in_a_shell() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kadril.capi", "--cflags"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shlex.split(done.stdout) == capi.cflags()
