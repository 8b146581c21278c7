"""The bootstrap over torch's store: values with a proof, ranks that are named, loopback only."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hub_place import Outcome, together

from kadril.errors import RendezvousError
from kadril.world.bootstrap import agree, serving, store
from kadril.world.bootstrap.store import StoreBootstrap
from kadril.world.fields import MAX_OBJECT_BYTES

SECRET = bytes(range(32))

# The event loop below torch's store opens a pipe with its first server, and keeps it for the life
# of the process. Here, so that the leak check of the session does not take it for one of ours.
dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port that is free, and a process that has no store yet."""
    stores: dict[Any, Any] = {}
    monkeypatch.setattr(store, "_stores", stores)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number = sock.getsockname()[1]
    yield number
    stores.clear()


def open_rank(port: int, rank: int, size: int, **changes: Any) -> StoreBootstrap:
    options = {
        "job": "job",
        "generation": 0,
        "secret": SECRET,
        "is_served": False,
        "timeout": 20.0,
        **changes,
    }
    return StoreBootstrap.at_address("127.0.0.1", port, rank, size, **options)


def open_ranks(port: int, size: int, **changes: Any) -> list[StoreBootstrap]:
    return together([lambda r=rank: open_rank(port, r, size, **changes) for rank in range(size)])


def exchange(ranks: list[StoreBootstrap], label: str = "") -> list[Any]:
    return together([lambda b=each: b.exchange(f"{label}{b.rank}".encode()) for each in ranks])


@pytest.mark.parametrize("secret", [SECRET, None])
def test_exchange_in_rounds(port: int, secret: bytes | None) -> None:
    ranks = open_ranks(port, 3, secret=secret)
    for number in range(3):
        label = f"round {number}, rank "
        assert exchange(ranks, label) == [[f"{label}{r}".encode() for r in range(3)]] * 3
    together([each.finish for each in ranks])


def test_every_byte_survives(port: int) -> None:
    ranks = open_ranks(port, 2)
    blob = bytes(range(256)) * 100
    assert together([lambda b=each: b.exchange(blob) for each in ranks]) == [[blob] * 2] * 2
    with pytest.raises(ValueError, match=str(MAX_OBJECT_BYTES)):
        ranks[0].exchange(bytes(MAX_OBJECT_BYTES + 1))


def test_a_generation_does_not_read_another(port: int) -> None:
    """Keys that a dead rank left must not be taken for those of its successor."""
    old = open_ranks(port, 2)
    assert exchange(old, "old") == [[b"old0", b"old1"]] * 2
    assert exchange(open_ranks(port, 2, generation=1), "new") == [[b"new0", b"new1"]] * 2
    assert exchange(open_ranks(port, 2, job="other"), "x") == [[b"x0", b"x1"]] * 2


def test_missing_ranks_are_named(port: int) -> None:
    first, second = together([lambda r=r: open_rank(port, r, 4, timeout=0.3) for r in (0, 2)])
    for outcome in [Outcome(lambda b=each: b.exchange(b"")) for each in (first, second)]:
        outcome.join()
        assert isinstance(outcome.error, RendezvousError)
        assert "ranks 1, 3 of 4 did not come to the store" in str(outcome.error)


def forge(port: int, key: str, value: bytes) -> None:
    """A stranger who reaches the port can write whatever he likes."""
    dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False).set(key, value.hex())


def test_a_value_that_a_stranger_wrote(port: int) -> None:
    first = open_rank(port, 0, 2)
    forge(port, "kadril/job/0/0/1", bytes(32) + b"evil")
    with pytest.raises(RendezvousError, match=r"the value of rank 1 .* has a wrong proof"):
        first.exchange(b"")


def test_a_value_moved_from_another_key(port: int) -> None:
    """The proof covers the key: what rank 1 said in round 0 is not what it says in round 1."""
    ranks = open_ranks(port, 2)
    exchange(ranks)
    stolen = bytes.fromhex(store._stores["127.0.0.1", port].get("kadril/job/0/0/1").decode())
    forge(port, "kadril/job/0/1/1", stolen)
    with pytest.raises(RendezvousError, match="wrong proof"):
        ranks[0].exchange(b"")


def test_a_rank_with_another_secret(port: int) -> None:
    ranks = [open_rank(port, 0, 2), open_rank(port, 1, 2, secret=bytes(32))]
    for outcome in [Outcome(lambda b=each: b.exchange(b"")) for each in ranks]:
        outcome.join()
        assert "KADRIL_SECRET_FILE" in str(outcome.error)


@pytest.mark.parametrize("value", ["zz", "", "\u00e9" * 4, "0" * 3])
def test_a_value_that_is_not_ours(port: int, value: str) -> None:
    first = open_rank(port, 0, 2)
    store._stores["127.0.0.1", port].set("kadril/job/0/0/1", value)
    with pytest.raises(RendezvousError, match=r"not kadril's|wrong proof"):
        first.exchange(b"")


def test_no_secret_is_said_once(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="kadril"):
        for generation in range(3):
            open_rank(port, 0, 1, secret=None, generation=generation)
    assert caplog.text.count("is read without a proof") == 1


def test_the_store_listens_on_loopback_only(port: int) -> None:
    """Left to itself torch's store listens on every interface, whatever address it was given."""
    open_rank(port, 0, 2)
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()
        if re.search(rf":{port:04X} [0-9A-F]+:0000 0A", line)
    ]
    assert listening == [f"0100007F:{port:04X}"]


def test_a_port_that_another_process_has(port: int) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(RendezvousError, match="cannot serve the store at 127"):
            open_rank(port, 0, 2)


def test_a_port_where_this_process_serves_a_store_already(port: int) -> None:
    """init_process_group() was called first: its server is shared, not fought with."""
    theirs = dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, multi_tenant=True
    )
    ranks = open_ranks(port, 2)
    assert exchange(ranks) == [[b"0", b"1"]] * 2
    assert theirs.check(["kadril/job/0/0/0"])


def test_an_address_of_another_host(port: int) -> None:
    with pytest.raises(RendezvousError, match="MASTER_ADDR must be an address of rank 0"):
        serving.start_store("192.0.2.1", port, 5)  # of a block that nobody has


def test_nobody_serves(port: int) -> None:
    start = time.monotonic()
    with pytest.raises(RendezvousError, match=f"nobody serves the store at 127.0.0.1:{port}"):
        open_rank(port, 1, 2, timeout=0.2)
    assert time.monotonic() - start < 3


def test_agreement_names_who_failed(port: int) -> None:
    ranks = open_ranks(port, 3)

    def act(each: StoreBootstrap) -> bytes:
        if each.rank == 1:
            raise OSError("the disk is full")
        return b"fine"

    outcomes = [Outcome(lambda b=each: agree(b, "dance", lambda: act(b))) for each in ranks]
    for rank, outcome in enumerate(outcomes):
        outcome.join()
        if rank == 1:
            assert isinstance(outcome.error, OSError)
        else:
            assert isinstance(outcome.error, RendezvousError)
            assert "rank 1 could not dance: OSError: the disk is full" in str(outcome.error)
    assert (
        together([lambda b=each: agree(b, "sing", lambda: b"la") for each in ranks])
        == [[b"la"] * 3] * 3
    )
