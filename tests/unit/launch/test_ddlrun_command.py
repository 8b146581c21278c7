"""`kadril ddlrun`: IBM's options, what DDL_OPTIONS becomes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kadril.errors import ConfigError
from kadril.launch.options import RunOptions
from kadril.launch.verbs.ddlrun_command import main, make_parser, to_options
from kadril.launch.verbs.rank_file_command import main as write_rank_file

HOSTS = "192.0.2.1,192.0.2.2,192.0.2.3"


def options(*words: str) -> RunOptions:
    return to_options(make_parser().parse_args(words))


@pytest.mark.parametrize("dashes", ["-", "--"])
def test_ranks_go_round_the_hosts(dashes: str) -> None:
    words = [f"{dashes}H", HOSTS, f"{dashes}accelerators", "4", f"{dashes}mode", "n"]
    found = options(*words, "python", "ddl_mnist.py", "-v")
    assert found.command == ("python", "ddl_mnist.py", "-v")
    assert found.num_ranks == 12
    assert found.placement is not None
    assert found.placement.numbers == ((0, 3, 6, 9), (1, 4, 7, 10), (2, 5, 8, 11))
    assert found.environment == {"DDL_OPTIONS": "-mode n:4x3x1x1"}


@pytest.mark.parametrize(
    ("words", "ddl_options"),
    [
        ([], "-mode p:2x3x1x1"),
        (["-m", "b"], "-mode b:2x3x1x1"),
        (["-m", "r:6"], "-mode r:6"),
        (["-racks", "3"], "-mode p:2x1x3x1"),
        (["-nodes", "1", "-racks", "1", "--aisles", "3"], "-mode p:2x1x1x3"),
        (["-ddlarg", "-dump_iter 100"], "-mode p:2x3x1x1 -dump_iter 100"),
        (["-ddloption", "-dbg_level 1", "-mode", "c"], "-mode c:2x3x1x1 -dbg_level 1"),
        (["-x", "DDL_OPTIONS=-mode r:6"], "-mode r:6"),
    ],
)
def test_options_of_ddl(words: list[str], ddl_options: str) -> None:
    found = options("-H", HOSTS, "-accelerators", "2", *words, "true")
    assert found.environment["DDL_OPTIONS"] == ddl_options


def test_a_rank_file_says_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "4x3.rf"
    assert write_rank_file(["4x3", HOSTS, "--cores", "4"]) == 0
    file.write_text(capsys.readouterr().out)
    for flag in ("-rf", "--rf", "-rankfile", "--rankfile"):
        found = options(flag, str(file), "true")
        assert found.placement is not None
        assert found.placement.numbers == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
        assert found.environment["DDL_OPTIONS"] == "-mode p:4x3x1x1"
    file.write_text("rank 0=192.0.2.1 slot=0\nrank 1=192.0.2.1 slot=1\nrank 2=192.0.2.2 slot=0\n")
    assert options("-rf", str(file), "true").environment["DDL_OPTIONS"] == "-mode p:3"


def test_what_has_no_effect_and_what_is_left_alone() -> None:
    found = options("-accelerators", "2", "-tcp", "-no_ddloptions", "-x", "A=b", "-v", "true")
    assert found.notices == ("-tcp has no effect: TCP is what there is between hosts",)
    assert found.environment == {"A": "b"}
    assert found.verbose


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-mpiarg", "x"], "-mpiarg cannot be used here: .*kadril mpirun"),
        (["-s"], "-s cannot be used here"),
        (["-nodes", "2", "-racks", "2"], r"2 x 2 x 1 = 4, and there are 3 hosts"),
        (["-mode", "n:4x4"], r"-mode n:4x4 is for 4 x 4 = 16 ranks, and .* 2 x 3 x 1 x 1 = 6"),
        (["-racks", "-1"], "must be 1 or more"),
        (["-H", "192.0.2.1:2,192.0.2.2:3"], "-H gives 2 or 3 slots of a host"),
        (["-H", "192.0.2.1:4,192.0.2.2:4"], "-H gives 4 slots of a host"),
    ],
)
def test_what_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options("-H", HOSTS, "-accelerators", "2", *words, "true")


def test_it_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-accelerators", "2", "-m", "n", "sh", "-c", "echo $DDL_OPTIONS"]) == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] -mode n:2x1x1x1", "[1] -mode n:2x1x1x1"]
    assert err.startswith("+ 2 ranks on localhost, DDL_OPTIONS='-mode n:2x1x1x1'")
    assert main(["-mpiarg", "x", "true"]) == 2
