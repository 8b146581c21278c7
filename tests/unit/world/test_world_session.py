"""The life of the one world of a process (F28): init, questions, shutdown, and again."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from hub_place import num_descriptors

import kadril
from kadril.config import Config
from kadril.errors import (
    AlreadyInitializedError,
    ClosedError,
    ConfigError,
    NotInitializedError,
    RendezvousError,
)
from kadril.world import make_current, open_local, session

QUESTIONS = {
    "rank": 0,
    "size": 1,
    "local_rank": 0,
    "local_size": 1,
    "cross_rank": 0,
    "cross_size": 1,
    "is_main": True,
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has not called init() yet, and that nobody launched."""
    for name in list(os.environ):
        if name.startswith(("KADRIL_", "OMPI_", "PMI", "SLURM_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(session, "_session", session.Session())
    yield
    kadril.shutdown()


@pytest.mark.parametrize("question", [*QUESTIONS, "current", "shared_empty"])
def test_a_question_before_init_and_after_shutdown(question: str) -> None:
    arguments = (3,) if question == "shared_empty" else ()
    assert not kadril.is_initialized()
    with pytest.raises(NotInitializedError, match=r"call kadril.init\(\) first"):
        getattr(kadril, question)(*arguments)
    kadril.init()
    assert kadril.is_initialized()
    getattr(kadril, question)(*arguments)
    kadril.shutdown()
    with pytest.raises(ClosedError, match=r"call kadril.init\(\) again"):
        getattr(kadril, question)(*arguments)
    assert not kadril.is_initialized()


def test_alone() -> None:
    world = kadril.init()
    assert {name: getattr(kadril, name)() for name in QUESTIONS} == QUESTIONS
    assert {name: getattr(world, name) for name in QUESTIONS} == QUESTIONS
    assert (world.transport.kind, world.source) == ("alone", "no launcher")
    assert kadril.current() is world
    tensor = torch.arange(4.0)
    world.transport.allreduce(tensor)
    assert tensor.tolist() == [0, 1, 2, 3]


def test_init_again() -> None:
    world = kadril.init(patience=12.0)
    assert kadril.init(patience=12.0) is world
    assert kadril.init(config=Config(patience=12.0)) is world
    with pytest.raises(AlreadyInitializedError, match=r"patience is 12.0, asked for 13.0"):
        kadril.init(patience=13.0)
    with pytest.raises(AlreadyInitializedError, match=r"patience is 12.0, asked for 300.0"):
        kadril.init()
    with pytest.raises(AlreadyInitializedError, match=r"by no launcher, asked for .*arguments"):
        kadril.init(patience=12.0, rank=0, size=1)
    assert kadril.current() is world


def test_variables_are_read_at_each_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KADRIL_PATIENCE", "7")
    assert kadril.init().config.patience == 7
    kadril.shutdown()
    assert kadril.init(patience=8).config.patience == 8


def test_shutdown_again_and_without_init() -> None:
    kadril.shutdown()
    world = kadril.init()
    kadril.shutdown()
    kadril.shutdown()
    world.close()
    assert world.is_closed
    with pytest.raises(ClosedError):
        world.shared_empty(3)


def test_as_a_context_manager() -> None:
    with kadril.init() as world:
        assert kadril.current() is world
    assert not kadril.is_initialized()
    with kadril.init() as second:
        assert second is not world
        assert second.generation == world.generation + 1


def test_a_hundred_cycles_leave_nothing() -> None:
    kadril.init()
    kadril.shutdown()
    before = num_descriptors()
    for _ in range(100):
        kadril.init()
        kadril.shutdown()
    assert num_descriptors() == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"patiance": 3}, TypeError),
        ({"patience": -3.0}, ConfigError),
        ({"patience": 3.0, "config": Config()}, TypeError),
        ({"transport": "pigeon"}, ConfigError),
        ({"transport": "mpi"}, ConfigError),
        ({"log_level": "LOUD"}, ConfigError),
        ({"rank": 0}, ConfigError),
        ({"rank": 1, "size": 2, "rendezvous": "carrier:pigeon"}, ConfigError),
        ({"rank": 1, "size": 2, "rendezvous": "tcp:nowhere"}, ConfigError),
        ({"rank": 1, "size": 2, "rendezvous": "unix:/nowhere/sock"}, ConfigError),
        (
            {"rank": 1, "size": 2, "rendezvous": "unix:/nowhere/sock", "secret_file": "/nowhere/s"},
            RendezvousError,
        ),
    ],
)
def test_an_init_that_fails_leaves_no_world(
    options: dict[str, object], error: type[Exception]
) -> None:
    before = num_descriptors()
    with pytest.raises(error):
        kadril.init(**options)
    assert num_descriptors() == before
    with pytest.raises(NotInitializedError):
        kadril.current()
    kadril.init()


def test_an_option_that_is_misspelt_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KADRIL_PATIENSE", "3")
    with pytest.warns(UserWarning, match="did you mean KADRIL_PATIENCE"):
        kadril.init()


def test_shared_empty_without_a_transport_that_shares(caplog: pytest.LogCaptureFixture) -> None:
    kadril.init(log_level="INFO")
    with caplog.at_level(logging.INFO, logger="kadril"):
        first, second = kadril.shared_empty((2, 3)), kadril.shared_empty(4, torch.int16)
    assert (first.shape, first.dtype) == ((2, 3), torch.float32)
    assert (second.shape, second.dtype) == ((4,), torch.int16)
    assert caplog.text.count("transport alone shares none") == 1, "said once, not for each tensor"


def test_what_was_chosen_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="kadril"):
        kadril.init(log_level="INFO")
    assert "rank 0 of 1 by no launcher; transport alone, since there is one rank" in caplog.text


def test_a_world_of_ones_own_is_not_the_current_one() -> None:
    with open_local(0, 1, "", bytes(32), job="test", config=Config()) as world:
        assert not kadril.is_initialized()
        make_current(world)
        assert kadril.current() is world
        with (
            open_local(0, 1, "", bytes(32), job="other", config=Config()) as other,
            pytest.raises(AlreadyInitializedError),
        ):
            make_current(other)


FORK = """
import multiprocessing, os, sys
import kadril

world = kadril.init()

def child():
    questions = (kadril.rank, kadril.current, kadril.init, kadril.shutdown)
    for call in (*questions, lambda: world.shared_empty(2)):
        try:
            call()
        except kadril.ForkedError as error:
            assert "made by fork" in str(error), error
        else:
            raise SystemExit("no error in the child")
    world.close()

pid = os.fork()
if pid == 0:
    child()
    sys.exit(9)  # by the way of a normal exit, with what runs there
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
assert process.exitcode == 0
assert kadril.rank() == 0 and kadril.current() is world and not world.is_closed
kadril.shared_empty(3)
"""


def test_a_child_made_by_fork_is_not_a_rank() -> None:
    """The parent goes on unharmed, and ends without a word though nobody called shutdown (F45)."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr
    assert time.monotonic() - start < 30
