"""Every parser that reads from a socket or a file: whatever it gets, a result or its own error.

A few examples of each in the ordinary suite. `make fuzz` gives each its share of an hour
(`FUZZ_SECONDS` for all of them together), with a seed that is printed. What was found once
is an example below.
"""

from __future__ import annotations

import datetime
import json
import os
import pickle
import random
import secrets
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from kadril.ddl.dump_file import read_dump
from kadril.errors import CheckpointError, ConfigError, RendezvousError
from kadril.experiment.datasets.cifar10 import CIFAR10
from kadril.experiment.datasets.mnist import MNIST
from kadril.experiment.errors import DataFileError, ExperimentError
from kadril.experiment.files.checkpoint_file import read_checkpoint
from kadril.experiment.files.yaml_file import load_text
from kadril.launch.elastic.host_slots import read_listing
from kadril.launch.mapping.hosts import parse_hosts, read_hostfile
from kadril.launch.mapping.rank_file import read_rank_file
from kadril.launch.remote.frame_channel import HEADER as AGENT_HEADER
from kadril.launch.remote.frame_channel import MARK, Frame, FrameChannel, Kind
from kadril.launch.request.config_file import read_config_file
from kadril.observe.flight_record import (
    HEADER,
    LAYOUT,
    MAGIC,
    RECORD,
    RECORDS_AT,
    RecordError,
    parse_record,
)
from kadril.sharded.checkpoint.dcp.metadata_unpickler import read_metadata
from kadril.sharded.checkpoint.own.index_file import FORMAT, INDEX, read_index
from kadril.shared_engine import object_codec
from kadril.shared_engine.object_codec import PickleRefusedError
from kadril.transport.ending import Ending
from kadril.transport.tcp_link import HEADER as LINK_HEADER
from kadril.transport.tcp_link import FrameError, FrameKind, TcpLink, Transfer
from kadril.world.card import Card
from kadril.world.fields import unpack
from kadril.world.handshake import Claim, LinkClaim, check_claim, check_verdict, make_claim
from kadril.world.job_messages import FIELDS, JobMessage, MessageKind, MessageReader
from kadril.world.wire import MAX_STRANGER_FRAME, FrameReader, WireError, encode
from kadril.world.wire import Kind as WireKind

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
SECRET, NONCE = bytes(32), bytes(range(32))


class Parser(NamedTuple):
    """A parser under test: what it may raise, whole inputs to start from, and hard cases."""

    parse: Callable[[bytes, Path], object]
    errors: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    cases: tuple[bytes, ...] = ()


def by_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Make a parser of bytes from one of files."""

    def parse(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return parse


def flight_record() -> bytes:
    header = HEADER.pack(MAGIC, LAYOUT, 2, 1234, 0, 2, 47, 2)
    waits = (1_000_000_000).to_bytes(8, "little") + b"barrier() at train.py:3\0"
    calls = b"".join(
        RECORD.pack(number, 4096, 10**9, 0, 4, number, 2, 0x010101, -1, b"grad")
        for number in (1, 2)
    )
    return (header.ljust(2048, b"\0") + waits).ljust(RECORDS_AT, b"\0") + calls


def job_message(kind: MessageKind) -> bytes:
    """Make a message of this kind, with some value in each of its fields."""
    samples = {int: 1, str: "numpy torch", bool: True}
    return JobMessage.of(kind, **{name: samples[of] for name, of in FIELDS[kind].items()}).encode()


class CodeRanError(BaseException):
    """A pickle has called what it must not; no `Exception`, which parsers may raise."""


def run_code(*_: object) -> None:
    raise CodeRanError


class Hostile:
    """An object whose pickle calls a function when it is read."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return run_code, ("anything",)


def plain_objects() -> tuple[bytes, ...]:
    """Make the bytes of objects: some that are read, and one that is not."""
    plain = {"a": [1, 2.5, None, "x"], "b": (b"y", {3}), "c": datetime.timedelta(1)}
    objects = (plain, np.arange(6.0).reshape(2, 3), torch.ones(3), np.float32(1), Hostile())
    return tuple(map(object_codec.encode, objects))


def metadata_of_dcp() -> bytes:
    """Make the metadata of a checkpoint of torch with one tensor."""
    from torch.distributed.checkpoint import metadata

    place = metadata.ChunkStorageMetadata(offsets=torch.Size([0]), sizes=torch.Size([2]))
    properties = metadata.TensorProperties(dtype=torch.float32)
    tensor = metadata.TensorStorageMetadata(properties, torch.Size([2]), [place])
    return pickle.dumps(metadata.Metadata(state_dict_metadata={"weight": tensor}))


def batch_of_cifar() -> bytes:
    images = np.zeros((2, 3 * 32 * 32), np.uint8)
    return pickle.dumps({b"data": images, b"labels": [0, 9]})


def read_agents_frames(data: bytes, _: Path) -> None:
    """Read frames as the launcher does, from a pipe that is closed after them."""
    read_end, write_end = os.pipe()
    other_read_end, other_write_end = os.pipe()
    ended: list[bool] = []
    with selectors.DefaultSelector() as selector:
        channel = FrameChannel(
            selector, read_end, other_write_end, lambda _: None, lambda: ended.append(True)
        )
        os.write(write_end, data[: 1 << 16])  # what a pipe holds
        os.close(write_end)
        while channel.is_open:
            for key, _ in selector.select():
                key.data()
    os.close(other_read_end)
    assert ended == [True]


def read_ranks_frames(data: bytes, _: Path) -> None:
    """Read frames of another rank, where 300 bytes are expected of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = TcpLink(ours, 1)
        link.expect(FrameKind.PACKET, memoryview(bytearray(300)), Transfer())
        theirs.sendall(data[: 1 << 16])
        theirs.shutdown(socket.SHUT_WR)
        while link.wants_to_read:
            link.pull()


def frame_of_rank(kind: FrameKind, payload: bytes) -> bytes:
    return LINK_HEADER.pack(kind, len(payload)) + payload


NESTED = b"[" * 100_000
PARSERS = {
    "wire frames": Parser(
        lambda data, _: FrameReader(MAX_STRANGER_FRAME).feed(data),
        (WireError,),
        (encode(WireKind.CLAIM, bytes(200)), encode(WireKind.BLOB, b"{}") * 3),
    ),
    "claims": Parser(
        lambda data, _: check_claim(SECRET, data, NONCE, "job"),
        (WireError,),
        (
            make_claim(SECRET, Claim(1, 2, "job", 0), NONCE),
            make_claim(SECRET, LinkClaim(1, 2, "job", 0, bytes(32)), NONCE),
        ),
    ),
    "verdicts": Parser(
        lambda data, _: check_verdict(SECRET, NONCE, b"claim", WireKind.WELCOME, data),
        (WireError,),
        (bytes(40),),
    ),
    "cards": Parser(
        lambda data, _: Card.unpack(data, 1), (RendezvousError,), (Card.mine().pack(),), (NESTED,)
    ),
    "fields that ranks send": Parser(
        lambda data, _: unpack(data, {"host": str, "port": int}, "rank 0"),
        (RendezvousError,),
        (b'{"host":"a","port":1}',),
        (b'{"host":' + NESTED, b'{"host":"a","port":' + b"9" * 5000 + b"}", b'{"host":"\\ud800"}'),
    ),
    "frames of ranks": Parser(
        read_ranks_frames,
        (FrameError,),
        (
            frame_of_rank(FrameKind.PACKET, bytes(300)),
            frame_of_rank(FrameKind.PACKET, bytes(100))
            + frame_of_rank(FrameKind.NOTE, Ending("lost", 3, 1, "killed").encode()),
        ),
    ),
    "frames of agents": Parser(
        read_agents_frames,
        (),
        (
            b"Welcome!\n" + MARK + AGENT_HEADER.pack(Kind.OUT.value, 0, 3) + b"abc",
            MARK + AGENT_HEADER.pack(Kind.EXIT.value, 2**32 - 1, 2) + b"{}",
        ),
    ),
    "endings": Parser(
        lambda data, _: Ending.decode(data),
        (),
        (Ending("lost", 3, 1, "killed").encode(),),
        (b"lost\n" + b"9" * 5000 + b"\n\n",),
    ),
    "messages of elastic jobs": Parser(
        lambda data, _: MessageReader("a rank").feed(data),
        (RendezvousError,),
        tuple(map(job_message, MessageKind)),
        (b'{"kind":"ready"}' + NESTED + b"\n", b'{"kind":"leave","code":' + b"9" * 5000 + b"}\n"),
    ),
    # Errors are those of pickle, of many kinds. What counts is that none of them is `CodeRanError`.
    "plain objects": Parser(
        lambda data, _: object_codec.decode(data, allow_pickle=False),
        (Exception,),
        plain_objects(),
        (b"\x80\4" + b"]" * 100_000 + b"a" * 99_999 + b".",),
    ),
    "listings of hosts": Parser(
        lambda data, _: read_listing(data.decode(errors="replace")),
        (ConfigError,),
        (b"localhost:4\nother # comment\n", b"a:0\n"),
        (b"a:" + b"9" * 5000,),
    ),
    "files of agents": Parser(
        lambda data, folder: Frame(Kind.FILE, 0, data).append_to(folder),
        (ValueError, OSError),
        (b"result-0\0abc", b"../secret\0abc"),
    ),
    "host lists": Parser(
        lambda data, _: parse_hosts(data.decode(errors="replace")),
        (ConfigError,),
        (b"a:2,b:2", b"[::1]:3"),
        (b"a:" + b"9" * 5000,),
    ),
    "host files": Parser(
        by_file("hosts", lambda path: read_hostfile(str(path))),
        (ConfigError,),
        (b"a slots=2\nb # comment\n",),
        (b"a slots=" + b"9" * 5000,),
    ),
    "rank files": Parser(
        by_file("ranks", lambda path: read_rank_file(str(path))),
        (ConfigError,),
        (b"rank 0=host1 slot=0:0-9\nrank 1=host1 slot=1:*\n",),
        (b"rank " + b"9" * 5000 + b"=h slot=0",),
    ),
    "config files": Parser(
        by_file("config.yaml", lambda path: read_config_file(str(path))),
        (ConfigError,),
        (b"params:\n  fusion-threshold-mb: 32\n",),
        (NESTED[:3000], b"? [1]\n: 2\n", b"a: 2001-99-99\n"),
    ),
    "experiments": Parser(
        lambda data, _: load_text(data.decode(errors="replace")),
        (ExperimentError,),
        (b"!obj:models.MLP {layers: [1, 2]}\n",),
        (NESTED[:3000], b"? [1]\n: 2\n", b"a: 2001-99-99\n", b"a: \0\n"),
    ),
    "indices of checkpoints": Parser(
        by_file(INDEX, lambda path: read_index(path.parent)),
        (CheckpointError,),
        (json.dumps({"format": FORMAT, "checksum": ""}).encode(),),
        (NESTED,),
    ),
    "metadata of checkpoints of torch": Parser(
        read_metadata,
        (CheckpointError,),
        (metadata_of_dcp(), pickle.dumps(Hostile())),
    ),
    "batches of CIFAR-10": Parser(
        by_file("data_batch_1", CIFAR10._read_python),
        (DataFileError,),
        (batch_of_cifar(), pickle.dumps(Hostile())),
    ),
    "binary batches of CIFAR-10": Parser(
        by_file("data_batch_1.bin", CIFAR10._read_binary), (DataFileError,), (bytes(3073),)
    ),
    "idx files": Parser(
        by_file("images", lambda path: MNIST._read_idx(path, 2051, 3)),
        (DataFileError,),
        (struct.pack(">4i", 2051, 1, 2, 2) + bytes(4), b"\x1f\x8b\x08" + bytes(20)),
        (struct.pack(">4i", 2051, -1, -1, 4) + bytes(4), b"\0\0\x08"),
    ),
    "checkpoints of experiments": Parser(
        by_file("state.pt", read_checkpoint),
        (ExperimentError,),
        (b"PK\3\4" + bytes(60), b"\x80\2}."),
    ),
    "dumps of ddl": Parser(
        by_file("dump", read_dump), (ValueError,), (b"kadril-ddl-dump 1 2\n{}\n",), (NESTED,)
    ),
    "flight records": Parser(
        lambda data, _: parse_record(data), (RecordError,), (flight_record(),)
    ),
}


def try_one(parser: Parser, data: bytes, folder: Path) -> None:
    """Raise where a parser raises what it must not."""
    with suppress(*parser.errors):
        parser.parse(data, folder)


def spoil(data: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    """Return data with pieces replaced, removed and added: (place, bytes removed, bytes added)."""
    spoilt = bytearray(data)
    for place, num_removed, added in edits:
        at = int(place * len(spoilt))
        spoilt[at : at + num_removed] = added
    return bytes(spoilt)


EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 16), st.binary(max_size=16)), max_size=6)


@pytest.mark.parametrize("name", PARSERS)
def test_whole_inputs(name: str, tmp_path: Path) -> None:
    parser = PARSERS[name]
    for data in (*parser.seeds, *parser.cases, b"", b"\0" * 5000, b"\xff" * 5000):
        try_one(parser, data, tmp_path)


@pytest.mark.parametrize("name", PARSERS)
def test_spoilt_inputs(name: str, tmp_path: Path) -> None:
    parser = PARSERS[name]
    deadline = time.monotonic() + SECONDS / len(PARSERS)
    dice = random.Random(os.environ.get("FUZZ_SEED") or secrets.randbits(32))
    while True:
        number = dice.getrandbits(32)
        sys.stdout.write(f"{name}: seed {number}\n")

        @seed(number)
        @settings(
            max_examples=2000 if SECONDS else 40,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.sampled_from(parser.seeds), EDITS, st.binary(max_size=200))
        def spoil_and_try(data: bytes, edits: list[tuple[float, int, bytes]], tail: bytes) -> None:
            try_one(parser, spoil(data, edits) if edits else tail, tmp_path)

        spoil_and_try()
        if time.monotonic() >= deadline:
            break


def test_a_hostile_object_runs_nothing() -> None:
    """The fuzzed bytes can do harm: where pickle is allowed, they run what they name."""
    hostile = object_codec.encode(Hostile())
    with pytest.raises(CodeRanError):
        object_codec.decode(hostile, allow_pickle=True)
    with pytest.raises(PickleRefusedError, match="run_code"):
        object_codec.decode(hostile, allow_pickle=False)


def test_a_flight_record_is_read_as_it_was_written() -> None:
    record = parse_record(flight_record())
    assert (record.pid, record.rank, record.size) == (1234, 0, 2)
    assert [call.text for call in record.calls] == ["allreduce(4 elements, name='grad')"] * 2
    assert record.waits == ((1.0, "barrier() at train.py:3"),)
