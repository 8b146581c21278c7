"""Cards, and strict reading of what other processes send."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kadril.errors import RendezvousError
from kadril.world.card import Card, check_versions
from kadril.world.fields import MAX_OBJECT_BYTES, pack, unpack

SHOW = "from kadril.world.card import Card; print(Card.mine('x').pack().decode())"


def card_of(command: list[str]) -> Card:
    """The card of another process, started by a command that ends before the interpreter."""
    output = subprocess.run(
        [*command, sys.executable, "-c", SHOW],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout
    return Card.unpack(output, 1)


def test_two_processes_of_one_host() -> None:
    mine, other = Card.mine("x"), card_of([])
    assert mine.host == other.host
    assert mine.pid != other.pid


def test_a_label_parts() -> None:
    assert Card.mine("x").host != Card.mine("y").host


@pytest.mark.parametrize("namespace", ["--mount", "--net", "--user", "--pid"])
def test_a_namespace_parts(namespace: str) -> None:
    """Ranks in two containers of one machine cannot reach each other's files or processes."""
    unshare = shutil.which("unshare")
    extra = ["--fork"] if namespace == "--pid" else []
    command = [unshare or "", namespace, *extra]
    if unshare is None or subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no right to make namespaces here")
    mine, other = Card.mine("x"), card_of(command)
    assert mine.boot_id == other.boot_id
    assert mine.host != other.host


def test_an_environment_variable_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Card.mine()
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "HOSTNAME", "SLURM_NODEID"):
        monkeypatch.setenv(name, "elsewhere")
    assert Card.mine() == before


def test_versions_that_differ_name_both_sides() -> None:
    card = dataclasses.replace(Card.mine(), hostname="a", version="1.0")
    check_versions([card, card])
    other = dataclasses.replace(card, hostname="b", version="2.0")
    with pytest.raises(RendezvousError, match=r"rank 0 on a runs kadril 1.0 and rank 2 on b.* 2.0"):
        check_versions([card, card, other])


@given(
    values=st.fixed_dictionaries(
        {"boot_id": st.text(), "hostname": st.text(), "pid": st.integers(0, 2**31)}
    )
)
def test_a_card_arrives_as_it_was_sent(values: dict[str, object]) -> None:
    card = dataclasses.replace(Card.mine("label"), **values)  # type: ignore[arg-type]
    assert Card.unpack(card.pack(), 0) == card


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 60_000,
        pack({"a": 1}),
        b'{"a":1,"b":true}',
        b'{"a":"1","b":"x"}',
        b'{"a":1,"b":"x","c":2}',
        b'{"a":1.0,"b":"x"}',
        b"x" * (MAX_OBJECT_BYTES + 1),
        b"\x80\x04\x95\x00",  # the start of a pickle
    ],
)
def test_objects_that_are_refused(blob: bytes) -> None:
    with pytest.raises(RendezvousError, match="rank 3 sent"):
        unpack(blob, {"a": int, "b": str}, "rank 3")


@given(blob=st.binary(max_size=300) | st.from_regex(r'\{"[ab]":.*\}').map(str.encode))
def test_no_bytes_raise_anything_else(blob: bytes) -> None:
    try:
        values = unpack(blob, {"a": int, "b": str}, "rank 3")
    except RendezvousError:
        return
    assert json.loads(blob) == values
