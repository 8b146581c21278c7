"""Percentiles, bandwidths, and ratios that are taken against the peer's better setting."""

from __future__ import annotations

import numpy as np
import pytest
from bench_report import make_report
from hypothesis import given
from hypothesis import strategies as st

from kadril.bench.figures import Ratio, percentile
from kadril.bench.rounds import Key


def ratios_of(series: dict[Key, list[list[float]]]) -> dict[tuple[str, str, str], Ratio]:
    ratios = make_report(series).ratios
    return {(ratio.engine, ratio.setting, ratio.peer): ratio for ratio in ratios}


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_percentiles_are_those_of_numpy(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_result() -> None:
    key = Key("allreduce", 1_000_000, "pinned", "kadril")
    (result,) = make_report({key: [[1e-3, 2e-3, 3e-3], [2e-3, 2e-3, 9e-3]]}, 4).results
    assert (result.num_samples, result.p50) == (6, 2e-3)
    assert result.p99 == pytest.approx(8.7e-3)  # between the two largest of six, at 0.95 of the way
    assert result.algbw == pytest.approx(0.5)
    assert result.busbw == pytest.approx(0.75)
    assert [(one.num_samples, one.p50) for one in result.rounds] == [(3, 2e-3), (3, 2e-3)]


def test_the_peer_is_taken_in_its_better_setting() -> None:
    # gloo is slower where its helper threads share one core with the rank: pinned, the ratio would
    # be 20.
    place = ("allreduce", 4)
    ratios = ratios_of(
        {
            Key(*place, "pinned", "kadril"): [[1e-6], [1e-6]],
            Key(*place, "unpinned", "kadril"): [[2e-6], [2e-6]],
            Key(*place, "pinned", "gloo"): [[20e-6], [20e-6]],
            Key(*place, "unpinned", "gloo"): [[10e-6], [10e-6]],
        }
    )
    assert ratios["kadril", "pinned", "gloo"].value == pytest.approx(10)
    assert ratios["kadril", "unpinned", "gloo"].value == pytest.approx(5)
    assert {ratio.peer_setting for ratio in ratios.values()} == {"unpinned"}
    assert len(ratios) == 2, "kadril is not compared with itself"


def test_the_spread_is_that_of_rounds() -> None:
    # A burst of noise in the second round meets both engines: samples spread, the ratio does not.
    place = ("allreduce", 4, "pinned")
    ratios = ratios_of(
        {
            Key(*place, "kadril"): [[1e-6], [8e-6], [1e-6]],
            Key(*place, "copy"): [[2e-6], [16e-6], [2e-6]],
            Key(*place, "openmpi"): [[2e-6], [2e-6], [3e-6]],
        }
    )
    even, uneven = ratios["kadril", "pinned", "copy"], ratios["kadril", "pinned", "openmpi"]
    assert (even.p10, even.value, even.p90) == pytest.approx((2, 2, 2))
    assert (uneven.p10, uneven.value, uneven.p90) == pytest.approx((0.6, 2, 2.8))


def test_what_a_peer_has_not_done_has_no_ratio() -> None:
    ratios = ratios_of(
        {
            Key("reduce", 4, "pinned", "kadril"): [[1e-6]],
            Key("allreduce", 4, "pinned", "gloo"): [[1e-6]],
        }
    )
    assert ratios == {}
