"""The plan of an all-reduce over tiers, played through on integers without any process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest

from kadril.errors import ConfigError
from kadril.transport.tiers.tier_plan import Sum, TierPlan, Way, make_plan, sum_chunk_bytes
from kadril.transport.tiers.topology import Topology, read_dimensions

LAYOUTS = {
    "2x2": ((0, 1), (2, 3)),
    "2x4": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "4x2": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "3+2": ((0, 1, 2), (3, 4)),
    "1+3": ((0,), (1, 2, 3)),
    "5+3+1+4": ((0, 1, 2, 3, 4), (5, 6, 7), (8,), (9, 10, 11, 12)),
    "round robin 2x4": ((0, 2, 4, 6), (1, 3, 5, 7)),
    "round robin 3+2": ((0, 2, 4), (1, 3)),
    "round robin 4x3": ((0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11)),
    "one host": ((0, 1, 2),),
    "one each": ((0,), (1,), (2,)),
}

RACKS = {
    "2x2x2": Topology.with_dimensions(LAYOUTS["4x2"], (2, 2, 2)),
    "1x2x2x3": Topology.with_dimensions([(rank,) for rank in range(12)], (1, 2, 2, 3)),
    "uneven": Topology(((0, 1, 2), (3,), (4, 5), (6, 7), (8,)), (((0, 1), (2,), (3, 4)),)),
}

TOPOLOGIES = {name: Topology(hosts) for name, hosts in LAYOUTS.items()} | RACKS


class Simulation:
    """A plan, played through on integers.

    Rank r gives (r + 1) * 1000003^(place + 1) mod 2^64 at each place: nothing cancels by chance.

    Attributes:
        memory: what each rank has at each place.
        is_there: whether it has anything there yet.
        sent: elements that went from one rank to another, by both.
    """

    def __init__(self, plan: TierPlan) -> None:
        self.plan = plan
        powers = np.cumprod(np.full(plan.num_elements, 1000003, np.uint64))
        self.given = np.arange(1, plan.topology.size + 1, dtype=np.uint64)[:, None] * powers
        self.memory = np.zeros_like(self.given)
        self.is_there = np.zeros(self.given.shape, bool)
        self.sent: Counter[tuple[int, int]] = Counter()

    def play(self) -> Simulation:
        for host, counts in zip(self.plan.topology.hosts, self.plan.counts, strict=True):
            for rank, places in held_places(host, counts):
                self.memory[rank, places] = self.given[list(host), places].sum(axis=0)
                self.is_there[rank, places] = True
        for sums in self.plan.steps:
            for each in sums:
                self.add(each)
        for sums in reversed(self.plan.steps):
            for each in sums:
                places = slice(each.begin, each.end)
                for source, target in each.backward():
                    self.sent[source, target] += each.end - each.begin
                    self.memory[target, places] = self.memory[source, places]
                    self.is_there[target, places] = self.is_there[source, places]
        return self

    def add(self, each: Sum) -> None:
        assert each.begin < each.end
        for source, target in each.outward():
            self.sent[source, target] += each.end - each.begin
        places, sources = slice(each.begin, each.end), list(each.sources)
        assert self.is_there[sources, places].all(), "a source has no partial sum of these elements"
        total = self.memory[sources, places].sum(axis=0)
        for owner in each.owners:
            self.memory[owner, places] = total
            self.is_there[owner, places] = True

    def check(self) -> None:
        """Every host has the sum of all ranks, in the pieces that its ranks hold."""
        expected = self.given.sum(axis=0)
        for host, counts in zip(self.plan.topology.hosts, self.plan.counts, strict=True):
            assert sum(counts) == self.plan.num_elements
            for rank, places in held_places(host, counts):
                assert self.is_there[rank, places].all()
                assert (self.memory[rank, places] == expected[places]).all()


def held_places(host: Sequence[int], counts: Sequence[int]) -> list[tuple[int, slice]]:
    ends = list(accumulate(counts))
    return [
        (rank, slice(end - count, end)) for rank, count, end in zip(host, counts, ends, strict=True)
    ]


@pytest.mark.parametrize("way", ["shares", "one step", "leaders"])
@pytest.mark.parametrize("num_elements", [0, 1, 2, 7, 60, 1001])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_rank_has_the_sum(name: str, num_elements: int, way: Way) -> None:
    plan = make_plan(TOPOLOGIES[name], num_elements, way)
    simulation = Simulation(plan).play()
    simulation.check()
    host_of = plan.topology.host_of
    assert all(host_of(source) != host_of(target) for source, target in simulation.sent)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_no_uplink_carries_more_than_the_bound(name: str) -> None:
    """2 (H - 1) / H n in each direction, on the uplinks of hosts and of every group of them."""
    num_elements = 27_720  # a multiple of all numbers of units, and of their products
    plan = make_plan(TOPOLOGIES[name], num_elements)
    sent = Simulation(plan).play().sent
    for tier in range(1, len(plan.topology.tiers) + 1):
        units = plan.topology.units(tier)
        bound = 2 * (len(units) - 1) * num_elements // len(units)
        for unit, (out, into) in zip(units, plan.uplinks(tier), strict=True):
            crossing = [
                sum(n for (a, b), n in sent.items() if (a in unit, b in unit) == way)
                for way in ((True, False), (False, True))
            ]
            assert [out, into] == crossing, "the plan says what it does"
            if name == "uneven":
                # Hosts of a small rack carry more of what crosses racks: (R - 1) / R within a rack
                # of R, and their share of the rack's (K - 1) / K across K racks.
                assert max(out, into) <= 2 * num_elements
            else:
                assert max(out, into) <= 1.03 * bound


@pytest.mark.parametrize("num_elements", [1 << 18, 1_600_001])
@pytest.mark.parametrize("name", LAYOUTS)
def test_sizes_that_do_not_divide_cost_a_few_elements(name: str, num_elements: int) -> None:
    plan = make_plan(TOPOLOGIES[name], num_elements)
    num_hosts = len(plan.topology.hosts)
    bound = 2 * (num_hosts - 1) * num_elements / num_hosts
    for sent, received in plan.uplinks(1):
        assert abs(sent - bound) <= 4 * plan.topology.size
        assert abs(received - bound) <= 4 * plan.topology.size


def test_all_local_ranks_carry_the_same_load() -> None:
    for name in ("2x2", "2x4", "4x2", "round robin 2x4", "round robin 4x3"):
        plan = make_plan(TOPOLOGIES[name], 27_720)
        load = [0] * plan.topology.size
        for transfer in plan.transfers():
            load[transfer.source] += transfer.end - transfer.begin
        assert max(load) == min(load), name


@pytest.mark.parametrize("name", ["2x2", "2x4", "4x2", "2x2x2"])
def test_contiguous_powers_of_two_add_pairwise_by_rank(name: str) -> None:
    """The order of `native/kernels.h`, written as brackets: so one host gives the same bits."""
    topology = TOPOLOGIES[name]
    expected = pairwise_text([str(rank) for rank in range(topology.size)])
    plan = make_plan(topology, 8)
    held = {
        rank: pairwise_text([str(member) for member in host])
        for host in topology.hosts
        for rank in host
    }
    for place in range(8):
        texts = dict(held)
        for sums in plan.steps:
            for each in sums:
                if each.begin <= place < each.end:
                    text = pairwise_text([texts[source] for source in each.sources])
                    texts |= dict.fromkeys(each.owners, text)
                    final = text
        assert final == expected


def pairwise_text(parts: list[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    middle = 1 << (len(parts) - 1).bit_length() - 1
    return f"({pairwise_text(parts[:middle])}+{pairwise_text(parts[middle:])})"


def test_dimensions_show_the_arithmetic() -> None:
    assert read_dimensions("4x3x1") == (4, 3, 1)
    with pytest.raises(ConfigError, match="numbers joined by x"):
        read_dimensions("4by3")
    with pytest.raises(ConfigError, match=r"4x3 are for 4 \* 3 = 12 ranks, and there are 8"):
        Topology.with_dimensions(LAYOUTS["4x2"], (4, 3))
    with pytest.raises(ConfigError, match=r"4 ranks on each host, and the 4 hosts have 2, 2, 2, 2"):
        Topology.with_dimensions(LAYOUTS["4x2"], (4, 2))
    racks = Topology.with_dimensions(LAYOUTS["4x2"], (2, 2, 2))
    assert racks.groups == (((0, 1), (2, 3)),)
    assert racks.units(2) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert len(racks.tiers) == 2


def test_a_rank_is_on_one_host() -> None:
    with pytest.raises(ValueError, match="every rank is on one host"):
        Topology(((0, 1), (1, 2)))
    with pytest.raises(ValueError, match="belongs to one group"):
        Topology(((0,), (1,)), (((0,),),))


def test_latency_is_bought_with_volume_only_beyond_two_hosts() -> None:
    two, four = TOPOLOGIES["2x2"], TOPOLOGIES["4x2"]
    assert make_plan(two, 800).uplinks(1) == make_plan(two, 800, "one step").uplinks(1)
    quick = make_plan(four, 800, "one step").uplinks(1)
    assert math.isclose(quick[0][0] / make_plan(four, 800).uplinks(1)[0][0], 4 / 2)


def test_chunks_grow_with_hosts_and_stay_several() -> None:
    # With shares of 64 KiB ranks were busier with messages than the link with bytes.
    mebi = 1 << 20
    assert sum_chunk_bytes(64 * mebi, 2, is_rounded=False) == mebi
    assert sum_chunk_bytes(64 * mebi, 2, is_rounded=True) == 2 * mebi
    assert sum_chunk_bytes(64 * mebi, 4, is_rounded=True) == 4 * mebi
    assert sum_chunk_bytes(8 * mebi, 4, is_rounded=True) == 2 * mebi
    assert sum_chunk_bytes(1000, 4, is_rounded=True) == mebi
    assert sum_chunk_bytes(10**9, 512, is_rounded=False) == 16 * mebi
    assert sum_chunk_bytes(10**6, 4, is_rounded=False, least=30_000) == 60_000
