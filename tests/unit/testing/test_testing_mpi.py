"""Search for the MPIs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kadril.testing.mpi_worker_pool import Unavailable, find_mpi


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o700)
    return path


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KADRIL_TESTING_OPENMPI", "KADRIL_TESTING_MPICH"):
        monkeypatch.delenv(name, raising=False)


def test_mpich_is_in_an_environment_of_its_own(tmp_path: Path) -> None:
    mpirun = make_program(tmp_path / ".venv-mpich" / "bin" / "mpirun")
    python = make_program(tmp_path / ".venv-mpich" / "bin" / "python")
    assert find_mpi("mpich", tmp_path) == ("mpich", mpirun, python)


def test_openmpi_is_beside_the_python_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = make_program(tmp_path / "bin" / "python")
    mpirun = make_program(tmp_path / "bin" / "mpirun")
    monkeypatch.setattr(sys, "executable", os.fspath(python))
    assert find_mpi("openmpi", tmp_path) == ("openmpi", mpirun, python)


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_a_variable_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavour: str
) -> None:
    """An MPI of the system has no Python beside it: the session's is used."""
    mpirun = make_program(tmp_path / "opt" / "mpirun")
    monkeypatch.setenv(f"KADRIL_TESTING_{flavour.upper()}", os.fspath(mpirun))
    assert find_mpi(flavour, tmp_path) == (flavour, mpirun, Path(sys.executable))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"install the wheel `mpich` there, or set KADRIL_TEST"):
        find_mpi("mpich", tmp_path)
    with pytest.raises(ValueError, match="no MPI 'lam' in the pool"):
        find_mpi("lam", tmp_path)
