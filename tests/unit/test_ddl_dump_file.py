"""Dump files: what is written is read, damage is noticed, and no rank takes another's number."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch

from kadril import cli
from kadril.ddl import command
from kadril.ddl.dump_file import read_dump, write_dump
from kadril.ddl.packing import DTYPE_OF_NAME
from kadril.transport.tensor import tensor_bytes

FACTS = {"rank": 1, "size": 2, "host": "a", "note": "any text, also \n lines"}


@pytest.mark.parametrize("name", DTYPE_OF_NAME)
def test_every_dtype_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    array = torch.arange(6).to(DTYPE_OF_NAME[name])
    path = write_dump(FACTS, {"input": array.view(2, 3), "none": array[:0]}, tmp_path)
    dump = read_dump(path)
    assert dump.facts == FACTS
    assert dump.arrays["input"].dtype == array.dtype
    assert torch.equal(tensor_bytes(dump.arrays["input"]), tensor_bytes(array))
    assert dump.arrays["none"].numel() == 0


def test_the_head_is_text(tmp_path: Path) -> None:
    path = write_dump(FACTS, {"input": torch.ones(2)}, tmp_path)
    lines = path.read_bytes().split(b"\n")
    assert lines[0].startswith(b"kadril ddl.dump 1 ")
    assert b' "rank": 1,' in lines


def test_numbers_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "ddl.dump001").write_text("somebody else's")
    paths = [write_dump(FACTS, {}, tmp_path).name for _ in range(3)]
    assert paths == ["ddl.dump000", "ddl.dump002", "ddl.dump003"]
    assert (tmp_path / "ddl.dump001").read_text() == "somebody else's"
    assert len(list(tmp_path.iterdir())) == 4, "no drafts are left"


def write_some(directory: str, writer: int) -> None:
    for _ in range(20):
        write_dump({"rank": writer}, {"input": torch.full((9,), float(writer))}, Path(directory))


def test_writers_at_once_never_share_a_number(tmp_path: Path) -> None:
    """Ranks of one host fail at the same moment, in the same directory."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_some, args=(str(tmp_path), i)) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == [f"ddl.dump{number:03d}" for number in range(60)]
    dumps = [read_dump(tmp_path / name) for name in found]
    assert sorted(dump.facts["rank"] for dump in dumps) == sorted([0, 1, 2] * 20)
    assert all(set(dump.arrays["input"].tolist()) == {dump.facts["rank"]} for dump in dumps)


def test_damage_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write_dump(FACTS, {"input": torch.ones(4)}, tmp_path).read_bytes()
    broken = tmp_path / "broken"
    for data in (
        b"",
        b"kadril ddl.dump 2 3\n{}\n",
        whole[:-1],
        whole + b"x",
        whole[: len(whole) // 2],
        whole.replace(b'"count": 4', b'"count": -4'),
        whole.replace(b'"float32"', b'"object_"'),
    ):
        broken.write_bytes(data)
        with pytest.raises(ValueError, match=r"is no whole file of kind 'kadril ddl\.dump 1'"):
            read_dump(broken)
    assert command.main(["show", str(broken), str(tmp_path / "missing")]) == 1
    told = capsys.readouterr().err
    assert "is no whole file" in told
    assert "No such file" in told
    assert cli.main(["ddl", "show", str(tmp_path / "ddl.dump000")]) == 1
    assert "ddl.dump000 has no entry 'name'" in capsys.readouterr().err
