"""Neighbours: cards say who may share a host, a look at a private directory proves it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_place import Outcome, Place, make_place, num_descriptors, open_hubs, together

from kadril.errors import RendezvousError
from kadril.world.bootstrap.host_hub import HubBootstrap
from kadril.world.card import Card
from kadril.world.hub import Hub
from kadril.world.layout import Layout
from kadril.world.neighbours import fingerprint, meet_neighbours, read_offer
from kadril.world.secret import PrivateDirectory

SCRIPT = Path(__file__).with_name("world_neighbour.py")


@pytest.fixture
def place() -> Iterator[Place]:
    with make_place() as made:
        yield made


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory in which private directories are made during the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def meet(hubs: list[Hub], cards: list[Card]) -> list[Outcome]:
    return [
        Outcome(
            lambda h=hub: meet_neighbours(
                HubBootstrap(h, job="job", generation=0, timeout=20), cards, timeout=20
            )
        )
        for hub in hubs
    ]


def test_ranks_of_three_hosts(place: Place, temporary: Path) -> None:
    before = num_descriptors()
    cards = [dataclasses.replace(Card.mine(), label=label) for label in "BABCA"]
    hubs = open_hubs(place, 5)
    found = [outcome.get() for outcome in meet(hubs, cards)]
    assert [layout for layout, _ in found] == [Layout(((0, 2), (1, 4), (3,)))] * 5
    assert [(hub.rank, hub.size) for _, hub in found] == [(0, 2), (0, 2), (1, 2), (0, 1), (1, 2)]
    blobs = together(
        [lambda h=hub, r=rank: h.allgather(b"%d" % r) for rank, (_, hub) in enumerate(found)]
    )
    assert blobs == [[b"0", b"2"], [b"1", b"4"], [b"0", b"2"], [b"3"], [b"1", b"4"]]
    assert list(temporary.iterdir()) == [], "directories are gone as soon as all have joined"
    for hub in [*hubs, *(hub for _, hub in found)]:
        hub.close()
    assert num_descriptors() == before


def test_equal_cards_and_different_files(place: Place, temporary: Path) -> None:
    """Clones of a virtual machine have one boot id: only a look at the files tells them apart."""
    unshare = shutil.which("unshare")
    hide = f"mount -t tmpfs none {temporary} && exec "
    if (
        unshare is None
        or subprocess.run(
            [unshare, "--mount", "sh", "-c", hide + "true"], stderr=subprocess.DEVNULL
        ).returncode
    ):
        pytest.skip("no right to hide files from a process here")
    size = 4  # ranks 0 and 1 here, ranks 2 and 3 where the directory of rank 0 cannot be seen
    clones = [
        subprocess.Popen(
            [
                *(unshare, "--mount", "sh", "-c", hide + '"$0" "$@"', sys.executable, str(SCRIPT)),
                *(place.path, place.secret.hex(), str(rank), str(size)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                # Each clone has a directory of its own here, so that they do not see each other.
                "TMPDIR": str(temporary),
            },
        )
        for rank in (2, 3)
    ]
    with contextlib.ExitStack() as stack:
        for clone in clones:
            stack.enter_context(clone)
            stack.callback(clone.kill)
        hubs = together([lambda r=rank: place.open(r, size) for rank in (0, 1)])
        card = Card.mine()
        together([lambda h=hub: h.allgather(card.pack()) for hub in hubs])
        found = [outcome.get() for outcome in meet(hubs, [card] * size)]
        said = [clone.stdout.read() for clone in clones if clone.stdout is not None]
    expected = Layout(((0, 1), (2,), (3,)))
    assert [layout for layout, _ in found] == [expected] * 2
    assert [hub.size for _, hub in found] == [2, 2]
    assert said == [f"{expected.hosts} 0 1\n"] * 2
    assert list(temporary.iterdir()) == []
    for hub in [*hubs, *(hub for _, hub in found)]:
        hub.close()


def test_no_place_for_a_directory(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    hubs = open_hubs(place, 3)
    for rank, outcome in enumerate(meet(hubs, [Card.mine()] * 3)):
        outcome.join()
        assert isinstance(outcome.error, RendezvousError)
        assert "Set TMPDIR" in str(outcome.error)
        if rank > 0:
            assert "rank 0 could not make a private directory" in str(outcome.error)
    for hub in hubs:
        hub.close()


def test_an_offer_is_checked_before_it_is_used(temporary: Path) -> None:
    with PrivateDirectory() as directory:
        expected = fingerprint(directory.secret)
        assert read_offer(directory.secret_file, expected, 0) == directory.secret
        with pytest.raises(RendezvousError, match="not the one that rank 3 wrote"):
            read_offer(directory.secret_file, fingerprint(bytes(32)), 3)
        directory.path.chmod(0o755)
        with pytest.raises(RendezvousError, match="chmod go-rwx"):
            read_offer(directory.secret_file, expected, 0)
    assert read_offer(directory.secret_file, expected, 0) == b""
