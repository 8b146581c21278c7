"""The cost model against arithmetic, and its bytes against those of the plan."""

from __future__ import annotations

import pytest

from kadril.transport.tiers.cost_model import (
    Phase,
    Schedule,
    TierSpeed,
    best_torus,
    flat_schedule,
    grid_topology,
    least_seconds,
    ring_schedule,
    tiered_schedule,
    torus_schedule,
    tree_schedule,
)
from kadril.transport.tiers.tier_plan import make_plan
from kadril.transport.tiers.topology import Topology

# Whole numbers of seconds, so that results can be compared by ==.
INSIDE = TierSpeed(bandwidth=100.0, latency=1.0)
BETWEEN = TierSpeed(bandwidth=10.0, latency=4.0, overhead=2.0)
TIERS = (INSIDE, BETWEEN)


def test_phases_that_do_not_overlap_add_up() -> None:
    schedule = Schedule("s", (Phase(0, 1, 1, 200), Phase(1, 2, 3, 40), Phase(0, 1, 1, 200)))
    inside, between = 1 * 1 + 2, 2 * 4 + 3 * 2 + 4
    assert schedule.seconds(TIERS) == 2 * inside + between
    assert schedule.uplink_bytes() == 40


def test_chunks_hide_the_faster_tier_behind_the_slower_one() -> None:
    # Of each of four chunks: 2 s inside a host, 10 s between hosts. All but the first chunk's time
    # inside is hidden.
    schedule = Schedule("s", (Phase(0, 0, 0, 800), Phase(1, 0, 0, 400)), num_chunks=4)
    assert schedule.seconds(TIERS) == 2 + 4 * 10


def test_messages_count_for_every_chunk() -> None:
    # A processor that is busy 12 s with the messages of a chunk is slower than the link, with 10 s.
    schedule = Schedule("s", (Phase(1, 0, 6, 400),), num_chunks=4)
    assert schedule.seconds(TIERS) == 10 + 12 + 3 * 12


def test_the_processors_of_a_host_do_the_work_of_all_its_ranks() -> None:
    """Two ranks send and receive 40 bytes in all: 80 s at 1 s each, on one core or on two."""
    tiers = (INSIDE, TierSpeed(bandwidth=10.0, latency=0.0, byte_cost=1.0))
    schedule = Schedule("s", (Phase(1, 0, 0, 40),), num_local=2)
    assert schedule.seconds(tiers) == schedule.seconds(tiers, cores=2) == 80 / 2
    assert schedule.seconds(tiers, cores=1) == 80
    assert schedule.seconds(tiers, cores=8) == 80 / 2  # a rank has one thread
    assert schedule.seconds(tiers, cores=0.5) == 160  # hosts that share a machine
    quick = (INSIDE, tiers[1]._replace(byte_cost=0.01))
    assert schedule.seconds(quick, cores=1) == 40 / 10  # the link takes longer


def test_what_moves_inside_a_host_is_work_of_its_processors() -> None:
    # Of each of four chunks: 2 s inside a host and 12 s of messages, on the same core; 10 s between
    # hosts.
    schedule = Schedule("s", (Phase(0, 0, 0, 800), Phase(1, 0, 6, 400)), num_chunks=4)
    assert schedule.seconds(TIERS) == 2 + 10 + 12 + 3 * (2 + 12)


def test_leaders_send_for_their_hosts() -> None:
    schedule = tiered_schedule(grid_topology(4, 2), 64, way="leaders")
    assert schedule.num_local == 1
    assert schedule.uplink_bytes() == 3 * 64  # everything to every other host
    assert [phase.num_bytes for phase in schedule.phases if phase.tier == 0] == [64, 64]


def test_a_chunk_is_passed_on_as_often_as_a_tree_is_deep() -> None:
    schedule = Schedule("s", (Phase(1, 0, 0, 400, depth=3),), num_chunks=4)
    assert schedule.seconds(TIERS) == 3 * 10 + 3 * 10


@pytest.mark.parametrize(
    "hosts",
    [
        ((0, 1), (2, 3)),
        ((0, 2), (1, 3)),
        ((0, 1, 2), (3, 4)),
        ((0, 1), (2, 3), (4, 5), (6, 7)),
        ((0,), (1,), (2,)),
    ],
)
def test_bytes_are_those_of_the_plan(hosts: tuple[tuple[int, ...], ...]) -> None:
    # A multiple of all numbers of ranks and hosts: what is left over would be counted up.
    topology, num_bytes = Topology(hosts), 144
    uplinks = make_plan(topology, num_bytes).uplinks(1)
    schedule = tiered_schedule(topology, num_bytes)
    assert schedule.uplink_bytes() == max(map(max, uplinks))


def test_bytes_of_racks_are_those_of_the_plan() -> None:
    topology = Topology.with_dimensions([(0, 1), (2, 3), (4, 5), (6, 7)], (2, 2, 2))
    plan = make_plan(topology, 64)
    schedule = tiered_schedule(topology, 64)
    assert schedule.uplink_bytes(2) == max(map(max, plan.uplinks(2)))


def test_half_as_many_bytes_cross_at_half_the_width() -> None:
    whole = tiered_schedule(grid_topology(4, 2), 64)
    half = tiered_schedule(grid_topology(4, 2), 64, wire=0.5)
    assert (whole.uplink_bytes(), half.uplink_bytes()) == (96, 48)


@pytest.mark.parametrize(("num_hosts", "num_local"), [(2, 2), (2, 4), (4, 2), (8, 8)])
def test_bytes_on_the_uplink(num_hosts: int, num_local: int) -> None:
    # n = H L, so that shares are whole numbers. The formulas are those of docs/forecast.md.
    size = num_hosts * num_local
    least = 2 * (num_hosts - 1) / num_hosts
    shape = (num_hosts, num_local, size)
    assert tiered_schedule(grid_topology(num_hosts, num_local), size).uplink_bytes() == least * size
    assert ring_schedule(*shape).uplink_bytes() == 2 * (size - 1)
    dealt = ring_schedule(*shape, round_robin=True)
    assert dealt.uplink_bytes() == 2 * num_local * (size - 1)
    assert flat_schedule(*shape).uplink_bytes() == num_local * least * size
    assert torus_schedule(*shape, num_local).uplink_bytes() == least * size
    assert tree_schedule(*shape).uplink_bytes() == 2 * size
    assert least_seconds(num_hosts, size, TIERS) == least * size / 10


def test_a_torus_has_the_steps_of_two_rings() -> None:
    schedule = torus_schedule(8, 2, 100, 4)
    assert schedule.name == "torus 4x4"
    assert sum(phase.num_steps for phase in schedule.phases) == 2 * 3 + 2 * 3
    with pytest.raises(ValueError, match="rows of 3 ranks are no whole hosts of 2"):
        torus_schedule(8, 2, 100, 3)


def test_the_best_torus_is_the_fastest_one() -> None:
    best = best_torus(8, 2, 100, TIERS)
    widths = (2, 4, 8, 16)
    assert best.seconds(TIERS) == min(
        torus_schedule(8, 2, 100, width).seconds(TIERS) for width in widths
    )


def test_thousands_of_workers_are_planned_at_once() -> None:
    # By transfers, of which there are four million, it would take seconds.
    schedule = tiered_schedule(grid_topology(512, 8), 4096 * 64)
    assert schedule.uplink_bytes() == 2 * 511 / 512 * 4096 * 64
