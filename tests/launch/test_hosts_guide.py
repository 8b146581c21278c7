"""docs/guides/hosts.md: each command in it runs, on hosts of the names that it uses."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from host_playground import HostPlayground

from kadril.launch.mapping.cpu_topology import this_topology
from kadril.launch.verbs.ddlrun_command import make_parser
from kadril.launch.verbs.mpi_flavour import MpiFlavour
from kadril.launch.verbs.mpirun_command import make_parser as make_mpirun_parser
from kadril.launch.verbs.mpirun_command import translate
from kadril.launch.verbs.rank_file_command import main as write_rank_file
from kadril.testing import HostNetwork

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "hosts.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)
LINES = [line for kind, body in FENCES if not kind for line in body.splitlines()]
COMMANDS = [line for line in LINES if line.startswith("kadril")]
RANK_FILES = [line for line in COMMANDS if line.startswith("kadril rankfile")]
STARTS = [line for line in COMMANDS if line not in RANK_FILES and "--dry-run" not in line]

RANK_FILE = (
    "rank 0=host0 slot=0:0\nrank 1=host0 slot=0:0\nrank 2=host1 slot=0:0\nrank 3=host1 slot=0:0\n"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("guide")
    (program,) = [body for kind, body in FENCES if kind == "python"]
    (names,) = [body for kind, body in FENCES if kind == "hosts"]
    (made / "hello.py").write_text(program)
    (made / "hosts.txt").write_text(names)
    (made / "2x2.rf").write_text(RANK_FILE)
    return made


@pytest.mark.parametrize("command", STARTS)
def test_starts(net: HostNetwork, directory: Path, command: str) -> None:
    _, verb, *words = shlex.split(command)
    playground = HostPlayground(net, directory)
    result = playground.run(*words, verb=verb)
    playground.close()
    assert result.code == 0, result.err.decode()
    found = sorted(line.partition("] ")[2] for line in result.out.decode().splitlines())
    order = (
        ("host0", "host1") * 2 if "-H host0,host1" in command else ("host0",) * 2 + ("host1",) * 2
    )
    assert found == [f"rank {rank} of 4 on {host}" for rank, host in enumerate(order)]


@pytest.mark.parametrize("command", RANK_FILES)
def test_rank_files(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "--cores" not in command and this_topology().num_cores < 2:
        pytest.skip("two ranks need two cores")
    assert write_rank_file(shlex.split(command)[2:]) == 0
    lines = capsys.readouterr().out.splitlines()
    if "--cores" in command:
        assert lines == [line for line in LINES if line.startswith("rank ")]
    else:
        order = "0101" if "ddl" in command else "0011"
        assert [re.findall(r"=host(\d)", line) for line in lines] == [[host] for host in order]


def test_lines_of_plain_mpirun(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    (command,) = [line for line in COMMANDS if line.startswith("kadril mpirun")]
    words = make_mpirun_parser().parse_args(shlex.split(command)[2:])
    for title, flavour in (
        ("Open MPI 5", MpiFlavour("Open MPI", 5)),
        ("Open MPI 4", MpiFlavour("Open MPI", 4)),
        (r"MPICH \(Hydra\)", MpiFlavour("Hydra", 5)),
    ):
        (told,) = re.findall(rf"^\| {title} \| `(.*)`", GUIDE, re.MULTILINE)
        line = " ".join(translate(words, "mpirun", flavour))
        assert line.replace(sys.executable, "python") == told


def test_the_table_of_ddlrun_is_that_of_the_program() -> None:
    table = GUIDE.partition("## ddlrun")[2].partition("## ")[0]
    told = {name for row in re.findall(r"^\| (`-.*?) \|", table, re.M) for name in row.split(", ")}
    told.add("`-no_ddloptions`")
    known = {
        f"`{name}`"
        for action in make_parser()._actions
        for name in action.option_strings
        if not name.startswith("--")
    }
    assert told == known - {"`-h`", "`-hosts`", "`-verbose`"}
