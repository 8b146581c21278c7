"""The check that every engine passes before it is measured must be able to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kadril.bench.collectives import COLLECTIVES, whole_bytes
from kadril.bench.workload import Floats, Workload, WrongResult

NUM_RANKS = 3


def make_works(name: str, num_bytes: int = 4 * 300) -> list[Workload]:
    """One workload per rank, with plain arrays."""
    if name in COLLECTIVES:
        num_bytes = whole_bytes(COLLECTIVES[name], num_bytes, NUM_RANKS)

    def allocate(count: int) -> Floats:
        return np.empty(count, dtype=np.float32)

    return [
        Workload(name, num_bytes, rank, NUM_RANKS, allocate=allocate, look=lambda array: array)
        for rank in range(NUM_RANKS)
    ]


def reference(name: str, works: list[Workload]) -> list[Floats]:
    """Return the result of each rank, straight from the definition."""
    sources = [work.source.copy() for work in works]
    total = np.sum(sources, axis=0) if name not in ("allgatherv",) else None
    results = []
    for rank, work in enumerate(works):
        part = slice(rank * work.part, (rank + 1) * work.part)
        results.append(
            {
                "allreduce": lambda: total,
                "reduce": lambda: total if rank == 0 else sources[rank],  # noqa: B023
                "broadcast": lambda: sources[0],
                "allgatherv": lambda: np.concatenate(sources),
                "reduce_scatterv": lambda: total[part],  # noqa: B023
                "alltoallv": lambda: np.concatenate([s[part] for s in sources]),  # noqa: B023
                "exchange": lambda: sources[rank - 1],  # noqa: B023
                "copy": lambda: sources[rank],  # noqa: B023
                "barrier": lambda: sources[rank],  # noqa: B023
            }[name]()
        )
    return results


def check_all(name: str, works: list[Workload], spoil: Callable[[list[Floats]], None]) -> None:
    """Let all ranks, as threads, check a collective that follows the definition, then is spoilt."""
    results: list[Floats] = []

    def meet() -> None:
        results[:] = reference(name, works)
        spoil(results)

    barrier = threading.Barrier(NUM_RANKS, action=meet)

    def check(work: Workload) -> None:
        def call() -> None:
            barrier.wait(10)
            work.target[:] = results[work.rank]

        work.check(call)

    with ThreadPoolExecutor(NUM_RANKS) as pool:
        for done in [pool.submit(check, work) for work in works]:
            done.result()


@pytest.mark.parametrize("name", [*COLLECTIVES, "copy"])
def test_right_results_pass(name: str) -> None:
    works = make_works(name)
    check_all(name, works, spoil=lambda results: None)
    for work in works:
        assert not work.source.any(), "what is measured must not grow from call to call"


@pytest.mark.parametrize("name", [name for name in [*COLLECTIVES, "copy"] if name != "barrier"])
def test_one_wrong_element_is_found(name: str) -> None:
    def spoil(results: list[Floats]) -> None:
        results[0] = results[0].copy()
        results[0][17] += 1

    with pytest.raises(WrongResult, match=f"{name} .* element 17 on rank 0"):
        check_all(name, make_works(name), spoil)


@pytest.mark.parametrize("name", ["reduce_scatterv", "exchange", "alltoallv"])
def test_results_of_another_rank_are_found(name: str) -> None:
    with pytest.raises(WrongResult):
        check_all(name, make_works(name), spoil=lambda results: results.reverse())


@pytest.mark.parametrize("name", ["allgatherv", "alltoallv"])
def test_parts_in_the_wrong_order_are_found(name: str) -> None:
    works = make_works(name)

    def rotate(results: list[Floats]) -> None:
        results[:] = [np.roll(result, works[0].part) for result in results]

    with pytest.raises(WrongResult):
        check_all(name, works, rotate)


def test_an_engine_that_does_nothing_is_found() -> None:
    for name in ("allreduce", "allgatherv", "exchange"):
        with pytest.raises(WrongResult):
            make_works(name)[1].check(lambda: None)


def test_memory_is_in_place_where_the_collective_is() -> None:
    in_place = {name for name in COLLECTIVES if (work := make_works(name)[0]).target is work.source}
    assert in_place == {"allreduce", "reduce", "broadcast"}
