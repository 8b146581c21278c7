"""Programs of the ranks that a fault strikes: one script for kadril, gloo and MPI.

Each engine has `rank`, `size`, `sum_(array, op)` in place, and `broadcast_(array)` from rank 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

__all__ = ["SCENARIOS", "VICTIM", "Engine", "WrongResult"]

VICTIM = 1
NUM_THREADS, NUM_TURNS = 4, 25


class WrongResult(Exception):  # noqa: N818 - reads as what happened
    """A call returned as if all was well, with a result that is not that of its inputs."""


class Engine(Protocol):
    """The calls of an engine that scenarios use."""

    rank: int
    size: int

    def sum_(self, array: Any, op: str = "sum") -> None:
        """Reduce an array in place."""

    def broadcast_(self, array: Any) -> None:
        """Copy rank 0's array to all."""


Mark = Callable[[str], None]


def expect(array: Any, value: float) -> None:
    """Raise if an array has other elements."""
    if not np.all(array == value):
        raise WrongResult(f"{array[:4]} instead of {value}")


def run_for_ever(engine: Engine, mark: Mark) -> None:
    """Sum again and again; the fault is a signal."""
    array = np.ones(20_000, np.float32)
    engine.sum_(array)
    mark("running")
    while True:
        array[:] = 1
        engine.sum_(array)
        expect(array, engine.size)


def exit_early(engine: Engine, mark: Mark) -> None:
    """The victim's program ends with an error."""
    engine.sum_(np.ones(4, np.float32))
    mark("running")
    if engine.rank == VICTIM:
        raise SystemExit(3)
    for _ in range(100):
        engine.sum_(np.ones(4, np.float32))


def skip_a_step(engine: Engine, mark: Mark) -> None:
    """The victim does not make a call that all others make."""
    engine.sum_(np.ones(4, np.float32))
    mark("running")
    if engine.rank != VICTIM:
        engine.sum_(np.ones(4, np.float32))


def differ_in_shape(engine: Engine, mark: Mark) -> None:
    """The victim gives fewer elements."""
    mark("running")
    array = np.ones(2 if engine.rank == VICTIM else 3, np.float32)
    engine.sum_(array)
    raise WrongResult(f"{array}")


def differ_in_dtype(engine: Engine, mark: Mark) -> None:
    """The victim gives whole numbers of the same width."""
    mark("running")
    array = np.ones(4, np.int32 if engine.rank == VICTIM else np.float32)
    engine.sum_(array)
    raise WrongResult(f"{array}")


def differ_in_op(engine: Engine, mark: Mark) -> None:
    """The victim asks for the largest."""
    mark("running")
    array = np.ones(4, np.float32)
    engine.sum_(array, "max" if engine.rank == VICTIM else "sum")
    raise WrongResult(f"{array}")


def differ_in_collective(engine: Engine, mark: Mark) -> None:
    """The victim broadcasts where the others sum."""
    mark("running")
    array = np.ones(4, np.float32)
    if engine.rank == VICTIM:
        engine.broadcast_(array)
    else:
        engine.sum_(array)
    raise WrongResult(f"{array}")


def call_from_threads(engine: Engine, mark: Mark) -> None:
    """Four threads sum on one group; all inputs are equal, so that their order does not matter."""
    mark("running")
    wrong: list[Any] = []

    def work() -> None:
        try:
            for _ in range(NUM_TURNS):
                array = np.ones(1000, np.float32)
                engine.sum_(array)
                expect(array, engine.size)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


SCENARIOS: dict[str, Callable[[Engine, Mark], None]] = {
    function.__name__: function
    for function in (
        run_for_ever,
        exit_early,
        skip_a_step,
        differ_in_shape,
        differ_in_dtype,
        differ_in_op,
        differ_in_collective,
        call_from_threads,
    )
}
