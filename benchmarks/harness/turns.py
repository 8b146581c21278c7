"""Rounds in which everybody has a turn; see `kadril.bench.turns` for the order and the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from harness.results import Series
from kadril.bench.turns import order_of_round

__all__ = ["Samples", "make_series", "slowest", "take_turns"]

T = TypeVar("T")

# Seconds per call: by setting, by round, by sample.
Samples: TypeAlias = dict[str, list[list[float]]]


def take_turns(takers: Mapping[str, Callable[[], T]], num_rounds: int) -> dict[str, list[T]]:
    """Call each taker once in each round, and return what it gave: by name, by round.

    Args:
        takers: by name, in the order of the first round.
        num_rounds: how often each has its turn.
    """
    found: dict[str, list[T]] = {name: [] for name in takers}
    for number in range(num_rounds):
        for name in order_of_round(tuple(takers), number):
            found[name].append(takers[name]())
    return found


def slowest(by_rank: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> Samples:
    """Return each sample as its slowest rank saw it."""
    return {
        name: [
            [max(sample) for sample in zip(*turns, strict=True)]
            for turns in zip(*(samples[name] for samples in by_rank), strict=True)
        ]
        for name in by_rank[0]
    }


def make_series(
    answers: Sequence[Mapping[str, Any]], notes: Mapping[str, str] | None = None
) -> list[Series]:
    """Return the series of a program that timed several workloads.

    Args:
        answers: of all ranks; each has `samples`, by workload and setting.
        notes: what a reader must know, by "workload: setting".
    """
    return [
        Series(workload, setting, rounds, (notes or {}).get(f"{workload}: {setting}", ""))
        for workload in answers[0]["samples"]
        for setting, rounds in slowest([one["samples"][workload] for one in answers]).items()
    ]
