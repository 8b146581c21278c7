"""The choice by the speed of tiers, and the file that keeps it."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from kadril.observe.doctor import main
from kadril.transport.tiers.cost_model import TierSpeed, grid_topology, tiered_schedule
from kadril.transport.tiers.tier_plan import WAYS, WayLimits, way_for
from kadril.transport.tiers.tier_probe import leader_pairs
from kadril.transport.tiers.tier_tuning import (
    SIZES,
    Measured,
    TierTuning,
    cache_directory,
    cached_tunings,
    choose_limits,
    load,
    slowest,
    speeds_of,
    store,
)
from kadril.transport.tiers.topology import Topology

MEMORY = TierSpeed(2e9, 50e-6)
GIGABIT = TierSpeed(119e6, 100e-6, 20e-6)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def tuning_of(topology: Topology, *names: str) -> TierTuning:
    measured = [Measured(0, (0, 0), MEMORY), Measured(1, (0, 1), GIGABIT)]
    return TierTuning.of(names, topology, measured, cores=2)


def test_rounds_share_no_link_and_every_two_units_of_a_group_meet_once() -> None:
    topology = Topology.with_dimensions([[2 * host, 2 * host + 1] for host in range(6)], (2, 3, 2))
    met: Counter[tuple[int, tuple[int, int]]] = Counter()
    for tier, pairs in leader_pairs(topology):
        ends = [unit for pair in pairs for unit in pair]
        assert len(set(ends)) == len(ends)
        met.update((tier, pair) for pair in pairs)
    assert set(met.values()) == {1}
    racks = [{(0, 1), (0, 2), (1, 2)}, {(3, 4), (3, 5), (4, 5)}]
    assert {pair for tier, pair in met if tier == 1} == racks[0] | racks[1]
    assert {pair for tier, pair in met if tier == 2} == {(0, 1)}


def test_a_tier_is_as_fast_as_its_slowest_link() -> None:
    measured = [
        Measured(1, (0, 1), TierSpeed(100e6, 30e-6, 5e-6, 1e-9)),
        Measured(1, (0, 2), TierSpeed(50e6, 20e-6, 6e-6, 2e-9)),
    ]
    assert slowest(measured) == {1: TierSpeed(50e6, 30e-6, 6e-6, 2e-9)}


@pytest.mark.parametrize("layout", [(2, 4), (4, 2), (8, 8)])
@pytest.mark.parametrize("rate", [12e6, 119e6, 1.2e9])
def test_the_chosen_way_is_the_quickest_by_the_model(layout: tuple[int, int], rate: float) -> None:
    topology = grid_topology(*layout)
    tiers = {0: MEMORY, 1: GIGABIT._replace(bandwidth=rate)}
    limits = choose_limits(topology, tiers, cores=4)
    assert limits.leaders <= limits.one_step
    speeds = speeds_of(topology, tiers)
    for num_bytes in SIZES:
        times = {
            way: tiered_schedule(topology, num_bytes, way=way).seconds(speeds, 4) for way in WAYS
        }
        chosen = way_for(num_bytes, limits)
        # The model's times cross once at most, so what is chosen by size is never beaten.
        assert times[chosen] <= min(times.values()) * (1 + 1e-9), (num_bytes, times)


def test_slow_messages_favour_leaders() -> None:
    """A step of 5 ms costs what 600 KB take: sending everything to everybody is quicker."""
    topology = grid_topology(4, 2)
    near = choose_limits(topology, {0: MEMORY, 1: GIGABIT}, cores=2)
    far = choose_limits(topology, {0: MEMORY, 1: GIGABIT._replace(latency=5e-3)}, cores=2)
    assert far.one_step > near.one_step


def test_what_was_stored_is_loaded_for_the_same_hosts_only() -> None:
    topology = grid_topology(2, 2)
    tuning = tuning_of(topology, "a", "b")
    store(tuning, "tcp")
    assert load(["a", "b"], topology, "tcp") == tuning
    assert load(["a", "c"], topology, "tcp") is None
    assert load(["a", "b"], grid_topology(2, 4), "tcp") is None
    assert load(["a", "b"], topology, "c10d") is None
    assert cached_tunings() == [tuning]


def test_the_file_is_its_owners_alone() -> None:
    store(tuning_of(grid_topology(2, 2), "a", "b"), "tcp")
    (path,) = cache_directory().iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert cache_directory().stat().st_mode & 0o777 == 0o700
    path.chmod(0o622)  # now others may have written it
    assert cached_tunings() == []
    path.chmod(0o600)
    other = path.with_name("link.json")
    other.symlink_to(path)
    assert len(cached_tunings()) == 1


def test_a_damaged_file_is_measured_again() -> None:
    topology = grid_topology(2, 2)
    store(tuning_of(topology, "a", "b"), "tcp")
    (path,) = cache_directory().iterdir()
    whole = json.loads(path.read_text())
    for text in ("", "[]", "{", json.dumps({**whole, "format": 0}), json.dumps({"format": 1})):
        path.write_text(text)
        assert load(["a", "b"], topology, "tcp") is None


def test_a_directory_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    store(tuning_of(grid_topology(2, 2), "a", "b"), "tcp")
    assert cached_tunings() == []


def test_the_doctor_tells_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan", "--hosts", "2,2"]) == 0
    assert "nothing yet on such hosts" in capsys.readouterr().out
    tuning = tuning_of(grid_topology(2, 2), "north", "south")
    store(tuning, "tcp")
    assert main(["--plan", "--hosts", "2,2", "--bytes", "64M"]) == 0
    told = capsys.readouterr().out
    assert "measured on north, south" in told
    assert "119.0 MB/s" in told
    assert f"leaders up to {tuning.limits.leaders:,} bytes" in told
    assert main(["--plan", "--hosts", "2,4"]) == 0
    assert "north" not in capsys.readouterr().out


def test_a_way_is_chosen_by_the_limits() -> None:
    limits = WayLimits(leaders=10, one_step=20)
    assert [way_for(size, limits) for size in (10, 11, 20, 21)] == [
        "leaders",
        "one step",
        "one step",
        "shares",
    ]
