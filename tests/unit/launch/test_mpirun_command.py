"""`kadril mpirun`: the same words for Open MPI 4 and 5 and for Hydra; and it runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kadril.errors import ConfigError
from kadril.launch.options import LaunchError
from kadril.launch.verbs.mpi_flavour import MpiFlavour, flavour_of, parse_version
from kadril.launch.verbs.mpirun_command import main, make_parser, ssh_variables, translate
from kadril.testing.mpi_worker_pool import Unavailable, find_mpi

OPEN_MPI_4 = MpiFlavour("Open MPI", 4)
OPEN_MPI_5 = MpiFlavour("Open MPI", 5)
HYDRA = MpiFlavour("Hydra", 5)

CONTIGUOUS = "rank 0=a slot=0:0\nrank 1=a slot=0:1\nrank 2=b slot=0:0\nrank 3=b slot=0:1\n"
ROUND_ROBIN = "rank 0=a slot=0:0\nrank 1=b slot=0:0\nrank 2=a slot=0:1\nrank 3=b slot=0:1\n"


def line(flavour: MpiFlavour, *words: str) -> str:
    return " ".join(translate(make_parser().parse_args(words), "mpirun", flavour))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "4.rf"
    path.write_text(CONTIGUOUS)
    return str(path)


@pytest.mark.parametrize("flag", ["-rf", "-rankfile", "--rankfile"])
@pytest.mark.parametrize("number", ["-n", "-np"])
def test_the_line_of_the_seed(file: str, flag: str, number: str) -> None:
    words = (number, "4", flag, file, "-x", "PATH", "-x", "A=b", "python", "ddl_mnist.py", "-n")
    end = f"-x PATH -x A=b {sys.executable} ddl_mnist.py -n"
    assert line(OPEN_MPI_5, *words) == (
        f"mpirun -n 4 --host a:2,b:2 --map-by rankfile:file={file} {end}"
    )
    assert line(OPEN_MPI_4, *words) == f"mpirun -n 4 --host a:2,b:2 --rankfile {file} {end}"


def test_hydra_has_no_rank_files(file: str) -> None:
    words = ("-rf", file, "-x", "PATH", "-x", "A=b", "prog", "1")
    start = "mpirun -genvlist PATH -genv A b"
    assert line(HYDRA, *words) == f"{start} -n 2 -host a prog 1 : -n 2 -host b prog 1"
    Path(file).write_text(ROUND_ROBIN)
    each = " : ".join(f"-n 1 -host {host} prog 1" for host in "abab")
    assert line(HYDRA, *words) == f"{start} {each}"
    assert line(HYDRA, "-n", "3", "-H", "a:2,b:1", "prog") == "mpirun -hosts a:2,b:1 -n 3 prog"


def test_hosts_without_a_rank_file_and_further_options(tmp_path: Path) -> None:
    assert line(OPEN_MPI_5, "-n", "2", "-H", "a:2", "p") == "mpirun -n 2 --host a:2 p"
    assert line(OPEN_MPI_5, "-hostfile", "h", "p") == "mpirun --hostfile h p"
    further = ("--mpiarg", "--mca pml ob1", "-mpiarg", "--bind-to none")
    assert line(OPEN_MPI_5, *further, "p") == "mpirun --mca pml ob1 --bind-to none p"
    hostfile = tmp_path / "h"
    hostfile.write_text("a slots=2\nb\n")
    assert line(HYDRA, "-hostfile", str(hostfile), "p") == "mpirun -hosts a:2,b:1 p"


def test_words_that_make_no_sense(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"-n 3, and rank file .* has 4 ranks"):
        line(OPEN_MPI_5, "-n", "3", "-rf", file, "p")
    with pytest.raises(ConfigError, match="no program"):
        line(OPEN_MPI_5, "-n", "3")
    with pytest.raises(SystemExit):
        main(["--bind-to", "none", "p"])
    assert "pass options of mpirun in --mpiarg '--bind-to'" in capsys.readouterr().err
    assert main(["--mpirun", "/no/such", "-n", "1", "p"]) == 127


def test_arguments_of_ssh() -> None:
    assert ssh_variables("-F f", OPEN_MPI_5) == {"PRTE_MCA_plm_ssh_args": "-F f"}
    assert ssh_variables("-F f", OPEN_MPI_4) == {"OMPI_MCA_plm_rsh_args": "-F f"}
    assert ssh_variables(None, HYDRA) == {}
    with pytest.raises(ConfigError, match="launcher-exec"):
        ssh_variables("-F f", HYDRA)


@pytest.mark.parametrize(
    ("text", "flavour"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to", OPEN_MPI_5),
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", OPEN_MPI_4),
        ("mpirun (OpenRTE) 4.0.3\n", OPEN_MPI_4),
        ("HYDRA build details:\n    Version:                                 5.0.2\n", HYDRA),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build", MpiFlavour("Hydra", 2021)),
    ],
)
def test_versions(text: str, flavour: MpiFlavour) -> None:
    assert parse_version(text, "mpirun") == flavour


def test_an_mpirun_that_is_not_known() -> None:
    with pytest.raises(LaunchError, match="says 'LAM 7', which is neither"):
        parse_version("LAM 7", "mpirun")


# In one write each: lines of ranks that print piece by piece get mixed up.
RANK = """
import os
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
os.write(1, f"{rank} {sorted(os.sched_getaffinity(0))}\\n".encode())
"""


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_real_mpirun_takes_what_the_verb_writes(
    flavour: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Open MPI itself reads the file and binds the ranks; Hydra starts them."""
    try:
        mpirun = str(find_mpi(flavour, request.config.rootpath).mpirun)
    except Unavailable as reason:
        pytest.skip(str(reason))
    kadril = [sys.executable, "-m", "kadril"]
    file = tmp_path / "here.rf"
    num_ranks = min(2, len(os.sched_getaffinity(0)))
    made = subprocess.run(
        [*kadril, "rankfile", f"{num_ranks}x1", socket.gethostname()],
        capture_output=True,
        text=True,
        check=True,
    )
    file.write_text(made.stdout)
    done = subprocess.run(
        [*kadril, "mpirun", "--mpirun", mpirun, "-rf", str(file), "python", "-c", RANK],
        env={
            **{name: value for name, value in os.environ.items() if name != "TMPDIR"},
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"+ {mpirun} " in done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [each.split()[0] for each in lines] == [str(rank) for rank in range(num_ranks)]
    if flavour_of(mpirun).name == "Open MPI":
        cores = [each.partition(" ")[2] for each in lines]
        assert len(set(cores)) == num_ranks  # each bound to cores of its own
