"""Worlds of programs that call `init_process_group()` themselves, and have no launcher.

`kadril.init()` made a world of one on each rank of `mp.spawn`: two models were trained, and nobody
said so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hub_place import Outcome, together

from kadril.errors import RendezvousError
from kadril.world.bootstrap import appointment
from kadril.world.bootstrap.appointment import Terms, make_appointment
from kadril.world.bootstrap.store import StoreBootstrap

PROGRAM = Path(__file__).with_name("process_group_program.py")
SIZE = 2

# All scenarios are played for the first test that asks.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with what ranks of all scenarios saw: one process loads torch for all of them."""
    made = tmp_path_factory.mktemp("scenarios")
    prefixes = ("KADRIL_", "OMPI_", "PMI", "SLURM_")
    clean = {name: text for name, text in os.environ.items() if not name.startswith(prefixes)}
    done = subprocess.run(
        [sys.executable, PROGRAM, made],
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout
    return made


def facts_of(scenario: str, directory: Path) -> list[Any]:
    """Return what each rank saw in a scenario."""
    error = directory / f"{scenario}.error"
    assert not error.exists(), error.read_text()
    files = [directory / f"{scenario}.{rank}.json" for rank in range(SIZE)]
    return [json.loads(each.read_text()) for each in files]


def world(rank: int, kind: str = "shm", source: str = "torch.distributed") -> list[Any]:
    """Return what a rank sees of a world of two ranks on one host."""
    return [rank, SIZE, kind, source, 3.0]


def test_every_way_to_make_a_process_group(directory: Path) -> None:
    """Several worlds over one group, and one that outlives it."""
    for rank, facts in enumerate(facts_of("ways", directory)):
        for way, seen in facts.items():
            source = "torchrun" if way == "env" else "torch.distributed"
            worlds = [world(rank, kind, source) for kind in ("shm", "c10d", "c10d")]
            assert seen == [*worlds, 3.0, True], way
        assert list(facts) == ["tcp", "file", "store", "env"]


def test_optimizers_under_spawn(directory: Path) -> None:
    for facts in facts_of("optimizers", directory):
        assert facts == {"hvd": [2, [-1.5] * 4, 3.0], "sharded": [2, [-1.5] * 4, 3.0]}


def test_variables_and_calls_that_contradict_the_process_group(directory: Path) -> None:
    for rank, facts in enumerate(facts_of("contradictions", directory)):
        for early in facts.pop("early"):
            assert early.startswith("StateError: kadril has a world of one, and torch.distributed")
            assert f"rank {rank} of 2: kadril.init() came before init_process_group()" in early
        size, other_rank = facts.pop("other size"), facts.pop("other rank")
        assert f"ConfigError: who is this process? torchrun says rank {rank} of 4" in size
        assert f"torchrun says rank {1 - rank} of 2 (RANK={1 - rank})" in other_rank
        for error in (size, other_rank):
            assert f"torch.distributed is initialized as rank {rank} of 2" in error
        child = facts.pop("in a child")
        assert child.startswith("ForkedError: init() in process")
        assert "fork of a process in which torch.distributed was initialized" in child
        assert facts == {
            "after it": world(rank),
            "half told": world(rank),
            "started alone": world(rank),
            "by request": world(rank),
            "explicit": [1, "alone"],
            "no port": world(rank, source="torchrun"),
        }


def test_a_rank_that_never_comes_and_groups_without_others(directory: Path) -> None:
    facts = facts_of("missing", directory)[0]
    assert "rank 0: rank 1 of 2 did not come to the store of torch.distributed" in facts["error"]
    assert "within 0.5 s" in facts["error"]
    assert "backend fake, as rank 0 of 4, and this backend has no store" in facts["fake"]
    assert facts["one"] == [0, 1, "alone", "torch.distributed", 1.0]


def test_ranks_made_by_fork(directory: Path) -> None:
    """Children of a parent with an open world are no ranks; after its shutdown they may be."""
    for rank, (while_open, after) in enumerate(facts_of("forked", directory)):
        assert while_open["error"].startswith("ForkedError: init() in process")
        assert after == {"world": world(rank)}


# The appointment, on a store that holds what others left


def appoint(store: dist.Store, size: int = 3, **changes: Any) -> list[Terms]:
    options = {"timeout": 20.0, **changes}
    # Ranks count their worlds differently where they had some before: rank 0's number is taken.
    return together(
        [
            lambda r=rank: make_appointment(store, r, size, generation=10 + r, **options)
            for rank in range(size)
        ]
    )


@pytest.mark.parametrize("secrets", [(None, None), (b"a" * 32, b"a" * 32), (b"a" * 32, None)])
def test_a_secret_of_the_job_is_used_in_place_of_the_agreed_one(
    secrets: tuple[bytes | None, ...],
) -> None:
    store = dist.HashStore()

    def exchange(rank: int) -> list[bytes]:
        bootstrap = StoreBootstrap.of_process_group(
            store, rank, 2, generation=0, secret=secrets[rank], timeout=20.0
        )
        return bootstrap.exchange(b"%d" % rank)

    for outcome in [Outcome(lambda r=rank: exchange(r)) for rank in range(2)]:
        if secrets[0] == secrets[1]:
            assert outcome.get() == [b"0", b"1"]
        else:
            with pytest.raises(RendezvousError, match=r"store of torch.distributed has a wrong"):
                outcome.get()


@pytest.fixture(params=["hash", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dist.Store:
    made = dist.HashStore() if request.param == "hash" else dist.FileStore(str(tmp_path / "s"), 9)
    return dist.PrefixStore("theirs", made)


def test_terms_are_equal_on_all_ranks_and_new_each_time(store: dist.Store) -> None:
    meetings = [appoint(store) for _ in range(3)]
    for terms in meetings:
        assert terms == terms[:1] * 3
        assert terms[0].generation == 10
        assert len(terms[0].secret) == 32
    assert len({terms[0].job for terms in meetings}) == 3
    assert len({terms[0].secret for terms in meetings}) == 3
    assert store.get(appointment.TERMS) == appointment.WIPED


def test_what_a_dead_rank_left_is_not_taken_for_new(store: dist.Store) -> None:
    """Ranks 1 and 2 said hello and died; rank 0 has offered terms to the dead."""
    for key in appointment.hello_keys(3):
        store.set(key, "of one who died")
    with pytest.raises(RendezvousError, match=r"ranks 1, 2 of 3 did not come"):
        make_appointment(store, 0, 3, 0, timeout=0.05)
    terms = appoint(store)
    assert terms == terms[:1] * 3


def test_what_is_in_the_store_is_read_strictly(store: dist.Store) -> None:
    store.set(appointment.TERMS, '{"job": "x"}')
    with pytest.raises(RendezvousError, match="rank 0 sent the fields"):
        make_appointment(store, 1, 2, 0, timeout=0.05)
    store.set(appointment.TERMS, appointment.WIPED.decode())
    with pytest.raises(RendezvousError, match=r"rank 1: rank 0 of 2 did not come"):
        make_appointment(store, 1, 2, 0, timeout=0.05)
