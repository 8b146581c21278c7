"""Tools of the tests of `kadril.torch`: the worlds they run in, and small helpers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import pytest
import torch

import kadril.torch as hvd
from kadril.errors import MismatchError
from kadril.testing import ranks
from kadril.world import World
from kadril.world.session import lend

__all__ = [
    "SHM",
    "TRANSPORTS",
    "check_works",
    "enter",
    "everywhere",
    "grad_of",
    "on_ranks",
    "on_shm",
    "raises_mismatch",
    "until",
    "with_peers",
    "with_peers_on_shm",
    "with_sets",
    "with_sets_on_shm",
]

TRANSPORTS = ("shm", "c10d", "mpi:openmpi")
SHM = ("shm",)

kept: list[AbstractContextManager[None]] = []

Body = TypeVar("Body", bound=Callable[..., None])


def on_ranks(
    *sizes: int,
    transports: Sequence[str] = TRANSPORTS,
    process_sets: Any = None,
    timeout: float = 45.0,
    **options: object,
) -> Callable[[Body], Body]:
    """Run a test as `kadril.testing.ranks` does, with the engine running beside it."""
    mark = ranks(*sizes, transports=transports, timeout=timeout, **options)

    def decorate(body: Body) -> Body:
        @functools.wraps(body)
        def run(*arguments: Any, **keywords: Any) -> None:
            hvd.init(process_sets=process_sets)
            try:
                body(*arguments, **keywords)
            finally:
                hvd.shutdown()

        return mark(run)  # type: ignore[return-value]

    return decorate


everywhere = on_ranks(1, 2, 3, 4)
on_shm = on_ranks(1, 2, 3, 4, transports=SHM)
# A world of one has nobody to differ from, or to wait for.
with_peers = on_ranks(2, 3)
with_peers_on_shm = on_ranks(2, 3, 4, transports=SHM)
# Process sets are made in the body.
with_sets = on_ranks(2, 3, process_sets="dynamic")
with_sets_on_shm = on_ranks(2, 3, 4, transports=SHM, process_sets="dynamic")


def enter(world: World) -> None:
    """Start the engine on a disposable rank's world, for the life of the process."""
    kept.append(lend(world))
    kept[-1].__enter__()
    hvd.init()


def check_works(name: str | None = None, process_set: Any = None) -> None:
    """An op that all ranks make alike gives the right result."""
    process_set = hvd.global_process_set if process_set is None else process_set
    total = hvd.allreduce(torch.ones(3), name=name, op=hvd.Sum, process_set=process_set)
    assert total.tolist() == [process_set.size()] * 3


@contextmanager
def raises_mismatch(*texts: str, members: Sequence[int] | None = None) -> Iterator[None]:
    """Require a `MismatchError` that shows these texts, and that the next op works."""
    with pytest.raises(MismatchError) as caught:
        yield
    assert isinstance(caught.value, hvd.HorovodInternalError)
    for text in texts:
        assert text.lower() in str(caught.value).lower(), f"{text!r} is not in: {caught.value}"
    assert sorted(caught.value.calls) == sorted(range(hvd.size()) if members is None else members)
    check_works("after a mismatch")


def grad_of(tensor: torch.Tensor) -> torch.Tensor:
    """The gradient of a leaf, which it must have."""
    assert tensor.grad is not None
    return tensor.grad


def until(condition: Callable[[], bool], timeout: float = 10.0) -> bool:
    """Look until the condition holds; False if it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True
