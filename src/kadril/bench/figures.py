"""Figures made of samples: percentiles, bandwidths, and ratios that are fair to the peer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from kadril.bench.collectives import COLLECTIVES
from kadril.bench.rounds import Key, Measurements

__all__ = [
    "OWN_ENGINES",
    "Ratio",
    "Result",
    "RoundResult",
    "make_ratios",
    "make_results",
    "percentile",
]

OWN_ENGINES = ("kadril", "zero-copy")


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """Figures of one round, in seconds per call."""

    num_samples: int
    p10: float
    p50: float
    p90: float
    p99: float


@dataclasses.dataclass(frozen=True)
class Result:
    """One engine at one task, over all rounds.

    Attributes:
        collective: that was measured.
        num_bytes: its size.
        setting: "pinned" or "unpinned".
        engine: that was measured.
        num_calls: calls per sample. Where more than one, percentiles are those of batches.
        touch: whether arrays were written anew before each sample.
        num_samples: number of samples, of all rounds.
        p10: percentile of the seconds per call; likewise p50 (the median), p90, p99.
        algbw: algorithm bandwidth at the median, in 10^9 bytes per second.
        busbw: bus bandwidth, likewise.
        rounds: each round by itself.
    """

    collective: str
    num_bytes: int
    setting: str
    engine: str
    num_calls: int
    touch: bool
    num_samples: int
    p10: float
    p50: float
    p90: float
    p99: float
    algbw: float
    busbw: float
    rounds: tuple[RoundResult, ...]

    @property
    def key(self) -> Key:
        """Return what it is of."""
        return Key(self.collective, self.num_bytes, self.setting, self.engine)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Speed-up over a peer, in the setting in which the peer is faster.

    Attributes:
        collective: that was measured.
        num_bytes: its size.
        setting: of the engine.
        engine: "kadril" or "zero-copy".
        peer: the engine it is compared with.
        peer_setting: of the peer: its better one.
        value: the peer's median over that of the engine.
        p10: percentile of the same ratio taken round by round; likewise p90.
    """

    collective: str
    num_bytes: int
    setting: str
    engine: str
    peer: str
    peer_setting: str
    value: float
    p10: float
    p90: float


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value below which a share of the values lies, by linear interpolation.

    Raises:
        ValueError: there are no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def make_results(measured: Measurements, num_ranks: int) -> list[Result]:
    """One result for each series of samples."""
    return [
        make_result(key, rounds, measured, num_ranks) for key, rounds in measured.samples.items()
    ]


def make_result(
    key: Key, rounds: Sequence[Sequence[float]], measured: Measurements, num_ranks: int
) -> Result:
    """Return the result of one series."""
    samples = [seconds for one_round in rounds for seconds in one_round]
    median = percentile(samples, 0.5)
    algbw = key.num_bytes / median / 1e9
    task = measured.tasks[key]
    return Result(
        *key,
        num_calls=task.num_calls,
        touch=task.touch,
        num_samples=len(samples),
        p10=percentile(samples, 0.1),
        p50=median,
        p90=percentile(samples, 0.9),
        p99=percentile(samples, 0.99),
        algbw=algbw,
        busbw=algbw * COLLECTIVES[key.collective].bus_factor(num_ranks),
        rounds=tuple(
            RoundResult(len(one), *(percentile(one, share) for share in (0.1, 0.5, 0.9, 0.99)))
            for one in rounds
        ),
    )


def make_ratios(results: Sequence[Result]) -> list[Ratio]:
    """Kadril against every other engine, at everything that both were measured at."""
    by_key = {result.key: result for result in results}
    ratios = []
    for own in results:
        if own.engine not in OWN_ENGINES:
            continue
        peers = dict.fromkeys(result.engine for result in results)
        for peer in peers:
            better = None if peer in OWN_ENGINES else better_setting(by_key, own.key, peer)
            if better is not None:
                ratios.append(make_ratio(own, better))
    return ratios


def better_setting(by_key: Mapping[Key, Result], own: Key, peer: str) -> Result | None:
    """Return the peer's result at the same task, in the setting that suits it better."""
    keys = (own._replace(engine=peer, setting=setting) for setting in ("pinned", "unpinned"))
    found = [by_key[key] for key in keys if key in by_key]
    return min(found, key=lambda result: result.p50, default=None)


def make_ratio(own: Result, peer: Result) -> Ratio:
    """One result against another of the same task."""
    by_round = [
        theirs.p50 / ours.p50 for ours, theirs in zip(own.rounds, peer.rounds, strict=False)
    ]
    return Ratio(
        *own.key,
        peer=peer.engine,
        peer_setting=peer.setting,
        value=peer.p50 / own.p50,
        p10=percentile(by_round, 0.1),
        p90=percentile(by_round, 0.9),
    )
