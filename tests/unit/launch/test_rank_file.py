"""Rank files: how they are read and written, what is wrong with them and in which line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kadril.errors import ConfigError
from kadril.launch.mapping.dimensions import parse_dimensions
from kadril.launch.mapping.rank_file import (
    PlacedRank,
    Slot,
    format_rank_file,
    format_slots,
    parse_rank_file,
    parse_slots,
    read_rank_file,
)
from kadril.launch.verbs.rank_file_command import divide_cores, main, place_ranks


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("0:0-9", [Slot(0, tuple(range(10)))]),
        ("1:0-3;0:2", [Slot(1, (0, 1, 2, 3)), Slot(0, (2,))]),
        ("0-3", [Slot(None, (0, 1, 2, 3))]),
        ("0,2", [Slot(None, (0, 2))]),
        ("0:0-1,4", [Slot(0, (0, 1, 4))]),
        ("1:*", [Slot(1, None)]),
        ("*", [Slot(None, None)]),
    ],
)
def test_lists_of_cores(text: str, slots: list[Slot]) -> None:
    assert parse_slots(text) == tuple(slots)
    assert format_slots(parse_slots(text)) == text


def test_a_file_with_comments_in_any_order() -> None:
    text = "# all\nrank 1=b slot=0:1 # second\n\n  rank  0 = a.c  slots = 0-1 \n"
    assert parse_rank_file(text) == [
        PlacedRank(0, "a.c", (Slot(None, (0, 1)),), 4),
        PlacedRank(1, "b", (Slot(0, (1,)),), 2),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank 0=a slot=0\nrank 1=a\n", r"x.rf, line 2: expected `rank N=HOST slot=CORES`, got"),
        ("rank 0=a slot=0\nrank 0=b slot=0\n", r"line 2: rank 0 is already in line 1"),
        ("rank 0=a slot=0\nrank 2=b slot=0\n", r"no line for rank 1, and rank 2 in line 2.*0 to 1"),
        ("rank 1=a slot=0\n", r"no line for rank 0"),
        ("# nothing\n", "names no rank"),
        ("rank 0=+n0 slot=0\n", r"line 1: '\+n0' counts hosts .* write the host's name"),
        ("rank 0=a slot=x:0\n", "line 1: slot=x:0: 'x' is no number of a socket"),
        ("rank 0=a slot=0:\n", "line 1: slot=0:: '' is no core"),
        ("rank 0=a slot=3-1\n", "line 1: slot=3-1: '3-1' is no range of cores"),
        ("rank 0=a slot=0-999999999\n", "is no range"),
        ("rank 0=a slot=0;\n", r"'' is no core; forms: 0:0-9"),
        ("0=a slot=0\n", "expected `rank N=HOST"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_rank_file(text, "x.rf")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rank file .*none: .*No such file"):
        read_rank_file(str(tmp_path / "none"))


def test_ranks_host_by_host_and_round_the_hosts() -> None:
    hosts = ["r1h1", "r1h2", "r2h1", "r2h2"]
    contiguous = place_ranks((2, 2, 2), hosts, [10, 10])
    assert [placed.host for placed in contiguous] == [h for h in hosts for _ in range(2)]
    assert format_rank_file(contiguous[:2]) == "rank 0=r1h1 slot=0:0-9\nrank 1=r1h1 slot=1:0-9\n"
    # DDL's ddlrun numbered ranks so: g28n14 had 0, 2, 4, ... and g28n15 had 1, 3, 5, ...
    ddl = place_ranks((2, 2, 2), hosts, [10, 10], "ddl")
    assert [placed.host for placed in ddl] == hosts * 2
    for ranks in (contiguous, ddl):
        assert [placed.rank for placed in ranks] == list(range(8))
        read = parse_rank_file(format_rank_file(ranks))
        assert [(r.rank, r.host, r.slots) for r in read] == [
            (r.rank, r.host, r.slots) for r in ranks
        ]


@pytest.mark.parametrize(
    ("dimensions", "hosts", "message"),
    [
        ((4, 3), ["a", "b"], r"4x3 has 4 ranks on each of 3 = 3 hosts, and there are 2: a,b"),
        ((1, 2, 2), ["a", "b", "c"], r"1 ranks on each of 2 x 2 = 4 hosts, and there are 3"),
        ((2,), ["a", "b"], r"2 has 2 ranks on each of 1 hosts, and there are 2"),
        ((1, 2), ["a", "a"], r"names that differ.*got 'a'"),
        ((1, 1), [""], r"names that differ"),
        ((5, 1), ["a"], r"5 ranks on a host need a core each, and it has 4"),
    ],
)
def test_wrong_products_show_the_arithmetic(
    dimensions: tuple[int, ...], hosts: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        place_ranks(dimensions, hosts, [2, 2])


@pytest.mark.parametrize(("num_ranks", "sockets"), [(1, [3]), (3, [5, 5]), (4, [2, 2]), (7, [8])])
def test_each_core_goes_to_one_rank(num_ranks: int, sockets: list[int]) -> None:
    divided = divide_cores(num_ranks, sockets)
    assert len(divided) == num_ranks
    cores = [
        (slot.socket, core) for slots in divided for slot in slots for core in slot.cores or ()
    ]
    assert cores == [(socket, core) for socket, n in enumerate(sockets) for core in range(n)]
    sizes = [sum(len(slot.cores or ()) for slot in slots) for slots in divided]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["", "x", "4x", "0x2", "4x-1", "1x1x1x1x1", "4*3", "4 x 3"])
def test_dimensions_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="4x3 for 4 ranks on each of 3 hosts"):
        parse_dimensions(text)


def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["2x2x1", "a,b", "--cores", "8", "--sockets", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rank 0=a slot=0:0-3"
    assert lines[3] == "rank 3=b slot=1:0-3"
    assert main(["2x2", "a", "--cores", "8"]) == 2
    assert capsys.readouterr().err.startswith("kadril rankfile: 2x2 has 2 ranks on each of 2 =")
    assert main(["1", "a", "--cores", "9", "--sockets", "2"]) == 2
    assert "9 / 2 is no whole number" in capsys.readouterr().err
