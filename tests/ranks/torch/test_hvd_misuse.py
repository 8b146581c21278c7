"""Misuse that a rank can see by itself raises there, before anything is sent.

Every rank makes every mistake, or only one does: in both cases the next op works, since nobody was
told of the one that was refused.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hvd_stage import check_works, everywhere, on_shm, with_peers, with_sets_on_shm

import kadril.torch as hvd
from kadril.errors import NotInitializedError, StateError
from kadril.testing import ranks
from kadril.world import World


def mistakes(size: int) -> dict[str, tuple[Callable[[], object], str]]:
    """Return mistakes that a rank may make, and what the message must speak of."""
    rows = torch.ones(size * 2, 2)
    scalar = torch.tensor(1.0)
    return {
        "root too large": (lambda: hvd.broadcast(rows, size), "root"),
        "root negative": (lambda: hvd.broadcast(rows, -1), "root"),
        "root of async": (lambda: hvd.broadcast_async(rows, size), "root"),
        "root in place": (lambda: hvd.broadcast_(rows, size + 3), "root"),
        "root of async in place": (lambda: hvd.broadcast_async_(rows, -2), "root"),
        "splits too few": (lambda: hvd.alltoall(rows, [2] * (size - 1)), "split"),
        "splits too many": (lambda: hvd.alltoall(rows, [1] * (size + 1)), "split"),
        "splits above dim 0": (lambda: hvd.alltoall(rows, [3] + [2] * (size - 1)), "split"),
        "splits below dim 0": (lambda: hvd.alltoall(rows, [1] + [2] * (size - 1)), "split"),
        "splits negative": (
            lambda: hvd.alltoall(rows, [-1, 2 * size + 1, *([0] * (size - 2))]),
            "split",
        ),
        "splits in a tensor": (
            lambda: hvd.alltoall(rows, torch.full((size,), 9, dtype=torch.int32)),
            "split",
        ),
        "splits of two dims": (
            lambda: hvd.alltoall(rows, torch.full((size, 1), 2, dtype=torch.int32)),
            "split",
        ),
        "splits of async": (lambda: hvd.alltoall_async(rows, [9] * size), "split"),
        "allgather of 0-dim": (lambda: hvd.allgather(scalar), "dim"),
        "grouped allgather of 0-dim": (lambda: hvd.grouped_allgather([rows, scalar]), "dim"),
        "reducescatter of 0-dim": (lambda: hvd.reducescatter(scalar), "dim"),
        "grouped reducescatter of 0-dim": (
            lambda: hvd.grouped_reducescatter([rows, scalar]),
            "dim",
        ),
        "alltoall of 0-dim": (lambda: hvd.alltoall(scalar), "dim"),
        "reducescatter with min": (lambda: hvd.reducescatter(rows, op=hvd.Min), "reducescatter"),
        "reducescatter with max": (
            lambda: hvd.reducescatter_async(rows, op=hvd.Max),
            "reducescatter",
        ),
        "reducescatter with product": (
            lambda: hvd.grouped_reducescatter([rows], op=hvd.Product),
            "reducescatter",
        ),
        "reducescatter with adasum": (
            lambda: hvd.reducescatter(rows, op=hvd.Adasum),
            "reducescatter",
        ),
        "process set not added": (
            lambda: hvd.allreduce(rows, process_set=hvd.ProcessSet([0])),
            "set",
        ),
        "barrier of a process set not added": (
            lambda: hvd.barrier(process_set=hvd.ProcessSet([0])),
            "set",
        ),
    }


@everywhere
def test_every_rank_makes_every_mistake(world: World) -> None:
    for what, (mistake, text) in mistakes(world.size).items():
        if what == "splits negative" and world.size == 1:
            continue  # one split of a world of one that is negative is also below dim 0
        with pytest.raises(ValueError) as caught:
            mistake()
        assert text in str(caught.value).lower(), (what, str(caught.value))
    check_works()
    check_works("named")


@with_peers
def test_one_rank_makes_every_mistake(world: World) -> None:
    """The others wait meanwhile in an op, which then goes well."""
    if world.rank == 1:
        for what, (mistake, _) in mistakes(world.size).items():
            with pytest.raises(ValueError):
                mistake()
            assert what
    check_works()
    splits = [2] * world.size
    if world.rank == 0:
        with pytest.raises(ValueError, match="split"):
            hvd.alltoall(torch.ones(world.size * 2), [1] * world.size, name="tokens")
    result, _ = hvd.alltoall(torch.ones(world.size * 2), splits, name="tokens")
    assert len(result) == 2 * world.size


@with_peers
def test_an_equal_split_that_does_not_divide(world: World) -> None:
    with pytest.raises(ValueError, match=r"split|divi"):
        hvd.alltoall(torch.ones(world.size + 1))
    with pytest.raises(ValueError, match=r"split|divi"):
        hvd.alltoall_async(torch.ones(1, 4))
    check_works()


@on_shm
def test_what_is_no_tensor(world: World) -> None:
    refusal = (TypeError, ValueError)
    calls: list[Callable[[Any], object]] = [
        hvd.allreduce,
        hvd.allreduce_,
        hvd.allgather,
        lambda thing: hvd.broadcast(thing, 0),
        hvd.alltoall,
        hvd.reducescatter,
        lambda thing: hvd.grouped_allreduce([torch.ones(1), thing]),
    ]
    for call in calls:
        for thing in (None, 3.0, [1.0, 2.0], "tensor"):
            with pytest.raises(refusal):
                call(thing)
    for root in ("0", None, 0.5):
        with pytest.raises(refusal):
            hvd.broadcast(torch.ones(1), root)  # type: ignore[arg-type]
    for splits in ([0.5] * world.size, "2" * world.size, torch.full((world.size,), 0.5)):
        with pytest.raises(refusal):
            hvd.alltoall(torch.ones(world.size * 2), splits)  # type: ignore[arg-type]
    with pytest.raises(refusal):
        hvd.allreduce(torch.ones(2), prescale_factor="2")  # type: ignore[arg-type]
    with pytest.raises(refusal):
        hvd.allreduce(torch.ones(2), name=7)  # type: ignore[arg-type]
    check_works()


@with_sets_on_shm
def test_process_sets_that_make_no_sense(world: World) -> None:
    for wrong in ([-1], [world.size], [0, world.size + 3], ["0"], [0.5]):
        with pytest.raises((ValueError, TypeError)):
            hvd.add_process_set(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        hvd.ProcessSet([0, "one"])  # type: ignore[list-item]
    check_works()


@everywhere
def test_reductions_that_reducescatter_does_not_know(world: World) -> None:
    """Scripts catch NotImplementedError or HorovodInternalError; it was a plain ValueError."""
    rows = torch.ones(world.size, 2)
    for op, name in ((hvd.Adasum, "Adasum"), (hvd.Min, "Min"), (hvd.Max, "Max"), (7, "op 7")):
        for call in (
            lambda op=op: hvd.reducescatter(rows, op=op),
            lambda op=op: hvd.reducescatter_async(rows, op=op),
            lambda op=op: hvd.grouped_reducescatter([rows], op=op),
        ):
            with pytest.raises(NotImplementedError, match=f"not {name};") as caught:
                call()
            assert isinstance(caught.value, hvd.HorovodInternalError)
            assert isinstance(caught.value, ValueError)
    check_works()


@ranks(1)
def test_after_shutdown(world: World) -> None:
    hvd.init()
    assert hvd.is_initialized()
    hvd.shutdown()
    assert not hvd.is_initialized()
    for question in QUESTIONS:
        with pytest.raises(ValueError) as caught:
            getattr(hvd, question)()
        assert isinstance(caught.value, StateError), question
    for call in calls_before_init():
        with pytest.raises(ValueError) as caught:
            call()
        assert isinstance(caught.value, StateError)
    hvd.shutdown()  # again is allowed
    hvd.init()
    check_works()
    hvd.shutdown()


QUESTIONS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


def calls_before_init() -> list[Callable[[], object]]:
    ones = torch.ones(2)
    return [
        lambda: hvd.allreduce(ones),
        lambda: hvd.allreduce_async_(ones, name="x"),
        lambda: hvd.grouped_allreduce([ones]),
        lambda: hvd.allgather(ones),
        lambda: hvd.broadcast(ones, 0),
        lambda: hvd.alltoall(ones),
        lambda: hvd.reducescatter(ones),
        hvd.barrier,
        hvd.join,
        lambda: hvd.add_process_set([0]),
    ]


def check_before_init() -> None:
    """Check the errors in a process that has called nothing yet."""
    assert not hvd.is_initialized()
    questions: list[Callable[[], object]] = [getattr(hvd, question) for question in QUESTIONS]
    for call in [*questions, hvd.is_homogeneous, *calls_before_init()]:
        with pytest.raises(ValueError, match=r"call hvd\.init\(\) first") as caught:
            call()
        assert isinstance(caught.value, NotInitializedError)
        # Two were named, kadril.init() by some calls and hvd.init() by others; that one is enough.
        assert str(caught.value).count("init()") == 1
    hvd.shutdown()
    # A process that nobody launched is a world of one.
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]
    hvd.shutdown()
    for call in [*questions, hvd.is_homogeneous, *calls_before_init()]:
        with pytest.raises(NotInitializedError, match=r"shut down; call hvd\.init\(\) again"):
            call()
    hvd.init()


def test_before_init() -> None:
    program = "import test_hvd_misuse; test_hvd_misuse.check_before_init()"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {program}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    # It ends without shutdown(), and without a word.
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr
