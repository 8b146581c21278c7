"""A world under each launcher, for real: every rank a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kadril.testing.mpi_worker_pool import OPENMPI_DIRECTORY

PROGRAM = str(Path(__file__).with_name("world_program.py"))
BIN = Path(sys.executable).parent


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that no launcher started."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KADRIL_", "OMPI_", "PMI", "SLURM_")) or name == OPENMPI_DIRECTORY
    }
    return {
        **clean,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **more,
    }


def run(command: list[str], **more: str) -> str:
    """Run a launcher; its output. A failure shows it."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        env=environment(**more),
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def written(directory: Path, size: int) -> list[list[dict[str, Any]]]:
    """Return what each rank wrote, by rank."""
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(size)]


def one_host(rank: int, size: int, kind: str, source: str) -> dict[str, Any]:
    """Return what rank `rank` of `size` ranks on one host should see."""
    return {
        "rank": rank,
        "size": size,
        "local_rank": rank,
        "local_size": size,
        "cross_rank": 0,
        "cross_size": 1,
        "kind": kind,
        "source": source,
        "sum": [size * (size + 1) / 2] * 3,
        "hub": [rank, size],
        "is_flat": True,
    }


def kadril_run(size: int, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "kadril", "run", "-np", str(size), *arguments]


def test_kadril_run(tmp_path: Path) -> None:
    """A hundred cycles in one process leave neither descriptors nor threads (F28)."""
    program = [sys.executable, PROGRAM, str(tmp_path), "auto=100"]
    output = run(kadril_run(3, *program), KADRIL_LOG_LEVEL="INFO")
    for rank, (facts,) in enumerate(written(tmp_path, 3)):
        assert facts == one_host(rank, 3, "shm", "kadril run")
    assert "rank 2 of 3 by kadril run; transport shm, since all 3 ranks are on one host" in output


def test_labels_part_the_ranks_of_kadril_run(tmp_path: Path) -> None:
    """Ranks 0 and 1 on one host, rank 2 on another, says the label: so shared memory is out.

    Torch connects these hosts, so it is there for c10d too.
    """
    shell = 'KADRIL_HOST_LABEL=h$((KADRIL_RANK / 2)) exec "$0" "$@"'
    program = ["sh", "-c", shell, sys.executable, PROGRAM, str(tmp_path), "auto=6", "c10d=6"]
    run(kadril_run(3, *program))
    places = [(0, 2, 0, 2), (1, 2, 0, 1), (0, 1, 1, 2)]
    for rank, (worlds, place) in enumerate(zip(written(tmp_path, 3), places, strict=True)):
        local_rank, local_size, cross_rank, cross_size = place
        assert [facts["kind"] for facts in worlds] == ["tiered", "c10d"]
        for facts in worlds:
            assert facts == {
                **one_host(rank, 3, facts["kind"], "kadril run"),
                "local_rank": local_rank,
                "local_size": local_size,
                "cross_rank": cross_rank,
                "cross_size": cross_size,
                "hub": [local_rank, local_size],
            }


def test_leaving_without_shutdown_and_without_a_peer(tmp_path: Path) -> None:
    """Rank 1 is killed; rank 0 just ends: quietly, and at once (F45)."""
    start = time.monotonic()
    done = subprocess.run(
        kadril_run(2, sys.executable, PROGRAM, str(tmp_path), "auto=1", "end=kill"),
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert done.returncode == 128 + 9
    assert "Traceback" not in done.stdout + done.stderr
    assert time.monotonic() - start < 30


def test_torchrun(tmp_path: Path) -> None:
    """The agent serves the store; the ranks' private directories are gone when they have met.

    With a process group, both say the same, and the launcher's place to meet is kept.
    """
    torchrun = BIN / "torchrun"
    if not torchrun.exists():
        pytest.skip("torch without torchrun")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    launcher = [str(torchrun), "--standalone", "--nproc-per-node", "2"]
    with_a_group = ["group=gloo", "auto=6", "c10d=6"]
    program = [PROGRAM, str(tmp_path), "auto=20", "c10d=6", *with_a_group]
    run([*launcher, *program], TMPDIR=str(temporary))
    for rank, facts in enumerate(written(tmp_path, 2)):
        kinds = ("shm", "c10d", "shm", "c10d")
        assert facts == [one_host(rank, 2, kind, "torchrun") for kind in kinds]
    assert [path.name for path in temporary.iterdir() if path.name.startswith("kadril")] == []


def test_srun(tmp_path: Path) -> None:
    """Slurm starts two tasks on one node, with a secret: rank 0 serves the store itself."""
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "node[1-2]",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "1",
        "KADRIL_SECRET_FILE": str(secret),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(tmp_path), "auto=6"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(SLURM_PROCID=str(rank), **step),
        )
        for rank in (1, 0)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    for rank, (facts,) in enumerate(written(tmp_path, 2)):
        assert facts == one_host(rank, 2, "shm", "Slurm")


def has_mpi() -> bool:
    """Whether mpi4py finds the MPI that is installed beside the interpreter."""
    probe = [sys.executable, "-c", "from mpi4py import MPI"]
    return (BIN / "mpirun").exists() and not subprocess.run(probe, capture_output=True).returncode


def test_mpirun(tmp_path: Path) -> None:
    if not has_mpi():
        pytest.skip("no MPI in this environment")
    launcher = [str(BIN / "mpirun"), "-n", "2"]
    run([*launcher, sys.executable, PROGRAM, str(tmp_path), "auto=10", "c10d=6", "mpi=6"])
    for rank, facts in enumerate(written(tmp_path, 2)):
        assert [each["kind"] for each in facts] == ["shm", "c10d", "mpi"]
        for each in facts:
            assert each["source"] in ("Open MPI", "MPICH")
            assert each == one_host(rank, 2, each["kind"], each["source"])


MISSING = """
import sys, time
from pathlib import Path
from mpi4py import MPI
import kadril

rank, told = MPI.COMM_WORLD.rank, Path(sys.argv[1])
try:
    if rank != 1:
        kadril.init(connect_timeout=0.5)
except kadril.RendezvousError as error:
    (told / str(rank)).write_text(str(error))
while len(list(told.iterdir())) < 2:
    time.sleep(0.01)
"""


def test_a_rank_of_mpirun_that_never_calls_init(tmp_path: Path) -> None:
    """A collective of MPI would wait for it for ever; here both others learn which one it is."""
    if not has_mpi():
        pytest.skip("no MPI in this environment")
    launcher = [str(BIN / "mpirun"), "-n", "3"]
    oversubscribe = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    run([*launcher, sys.executable, "-c", MISSING, str(tmp_path)], **oversubscribe)
    for rank in (0, 2):
        text = (tmp_path / str(rank)).read_text()
        assert f"rank {rank}: rank 1 of 3 did not come within 0.5 s" in text


def test_mpirun_without_mpi4py(tmp_path: Path) -> None:
    """The variables of an MPI launcher, and no mpi4py: the error says what to install."""
    (tmp_path / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')")
    done = subprocess.run(
        [sys.executable, "-c", "import kadril; kadril.init()"],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **environment(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2"),
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        },
    )
    assert done.returncode == 1
    assert "RendezvousError: Open MPI started this process as rank 1" in done.stderr
    assert "pip install kadril[mpi]" in done.stderr
