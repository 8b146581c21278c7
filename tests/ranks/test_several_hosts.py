"""Worlds across hosts: how they are carried, and what a broken network does to them.

Each host is a network namespace with a link of its own (`kadril.testing.hosts`); needs root.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
import torch
from death_kit import allreduce_for_ever

from kadril.testing import HostNetwork, Ranks, hosts
from kadril.testing.faults import gate, mark
from kadril.testing.outcome import Outcome
from kadril.world import World

# Connections that nobody answers on are given up after this.
LINK_TIMEOUT = 2.0
# What may pass between that and the error: two looks, and a note of the other side.
MARGIN = 3.0


@pytest.fixture(scope="module")
def net() -> Iterator[HostNetwork]:
    with hosts(2, rate="100mbit", ssh=False) as network:
        yield network


@pytest.fixture
def whole(net: HostNetwork) -> Iterator[HostNetwork]:
    """The network, put in order after the test."""
    yield net
    net.mend()
    net.link_up(1)
    net.set_rate("100mbit")


def sum_of_ranks(world: World) -> tuple[str, float, list[int]]:
    total = torch.full((100_000,), world.rank + 1.0)
    world.transport.allreduce(total)
    part = world.transport.split(world.rank % 2)
    assert part is not None
    ones = torch.ones(3)
    part.allreduce(ones)
    assert ones.tolist() == [part.size] * 3
    return world.transport.kind, total.unique().item(), list(world.layout.hosts[0])


def sum_many(world: World, count: int, times: int) -> list[float]:
    """Sums whose bits depend on every byte that was carried."""
    mark("running")
    total = torch.zeros(count)
    for number in range(times):
        drawn = torch.Generator().manual_seed(number * world.size + world.rank)
        array = torch.rand(count, generator=drawn)
        world.transport.allreduce(array)
        total += array
    return total.tolist()


def wait_for_the_other(world: World) -> None:
    """Rank 0 waits in a barrier; nothing is under way on the link meanwhile."""
    world.transport.barrier()
    mark("running")
    if world.rank == 1:
        gate("come")
    world.transport.barrier()


def check_both_lost(outcomes: list[Outcome], began: float, bound: float) -> None:
    for outcome in outcomes:
        other = 1 - outcome.rank
        assert outcome.error is not None, outcome
        assert outcome.error.type == "PeerLost", outcome
        assert outcome.error.fields["rank"] == other, outcome
        assert outcome.error.fields["host"] == f"host{other}", outcome
        assert f"rank {other} on host{other}" in outcome.error.message, outcome
        assert outcome.finished is not None
        assert outcome.finished - began < bound, outcome


@pytest.mark.parametrize("transport", ["tcp", "c10d"])
def test_ranks_on_two_hosts_meet(net: HostNetwork, transport: str) -> None:
    with Ranks(2, transport=transport, network=net) as ranks:
        ranks.start(sum_of_ranks)
        for outcome in ranks.wait(30.0):
            assert outcome.error is None, outcome
            assert outcome.value == (transport, 3.0, [0])


def test_ranks_of_two_hosts_with_two_each_are_tiered() -> None:
    """Tiers are the default on several hosts: shared memory inside, our connections between."""
    with hosts(2, ranks=2, ssh=False) as net, Ranks(4, transport="tiered", network=net) as ranks:
        ranks.start(sum_of_ranks)
        for outcome in ranks.wait(30.0):
            assert outcome.error is None, outcome
            assert outcome.value == ("tiered", 10.0, [0, 1])


@pytest.mark.parametrize(
    "count", [pytest.param(3, marks=pytest.mark.long), 3_000_000], ids=["meeting", "packets"]
)
def test_a_link_that_is_down_is_told_on_both_sides(whole: HostNetwork, count: int) -> None:
    with Ranks(2, transport="tcp", network=whole, link_timeout=LINK_TIMEOUT) as ranks:
        ranks.start(allreduce_for_ever, count)
        ranks.wait_mark("running")
        began = time.monotonic()
        whole.link_down(1)
        check_both_lost(ranks.wait(30.0), began, LINK_TIMEOUT + MARGIN)


@pytest.mark.parametrize("fault", ["link down", pytest.param("cut", marks=pytest.mark.long)])
def test_gloo_s_ranks_do_not_wait_longer_than_patience(whole: HostNetwork, fault: str) -> None:
    """The rank that did not hold the store once waited 53 s beyond its patience, silently."""
    patience = 2.0
    with Ranks(2, transport="c10d", network=whole, patience=patience) as ranks:
        ranks.start(allreduce_for_ever, 300_000)
        ranks.wait_mark("running")
        began = time.monotonic()
        if fault == "cut":
            whole.cut(0, 1)
        else:
            whole.link_down(1)
        for outcome in ranks.wait(40.0):
            other = 1 - outcome.rank
            assert outcome.error is not None, outcome
            assert outcome.error.type in ("Stalled", "PeerLost"), outcome
            assert outcome.error.fields["rank"] == other, outcome
            assert outcome.error.fields["host"] == f"host{other}", outcome
            assert outcome.finished is not None
            assert outcome.finished - began < patience + 2 * MARGIN, outcome


def test_a_link_that_is_down_is_noticed_by_ranks_that_only_wait(whole: HostNetwork) -> None:
    """Nothing is sent, so only the probes of the kernel can find out."""
    with Ranks(2, transport="tcp", network=whole, link_timeout=LINK_TIMEOUT) as ranks:
        ranks.start(wait_for_the_other)
        ranks.wait_mark("come", ranks=[1])
        began = time.monotonic()
        whole.link_down(1)
        while ranks.look()[0].finished is None:
            ranks.pump(lambda: ranks.outcomes[0].finished is not None, 1.0)
            assert time.monotonic() - began < LINK_TIMEOUT + MARGIN
        ranks.open_gate("come")
        check_both_lost(ranks.wait(30.0), began, LINK_TIMEOUT + 2 * MARGIN)


@pytest.mark.long
def test_a_one_way_cut_is_told_on_both_sides(whole: HostNetwork) -> None:
    with Ranks(2, transport="tcp", network=whole, link_timeout=LINK_TIMEOUT) as ranks:
        ranks.start(allreduce_for_ever, 3_000_000)
        ranks.wait_mark("running")
        began = time.monotonic()
        whole.cut(0, 1)
        check_both_lost(ranks.wait(30.0), began, LINK_TIMEOUT + 2 * MARGIN)


@pytest.mark.long
def test_a_stopped_rank_on_another_host_is_late_and_not_dead(whole: HostNetwork) -> None:
    """The kernel answers for such a rank, with full buffers too, for longer than a dead one may."""
    patience = LINK_TIMEOUT + 2.0
    options = {"link_timeout": LINK_TIMEOUT, "patience": patience}
    with Ranks(2, transport="tcp", network=whole, **options) as ranks:
        ranks.start(allreduce_for_ever, 3_000_000)
        ranks.wait_mark("running")
        ranks.signal(1, signal.SIGSTOP)
        outcome = ranks.wait(30.0)[0]
        assert outcome.error is not None
        assert outcome.error.type == "Stalled", outcome
        assert outcome.error.fields["rank"] == 1
        assert outcome.error.fields["host"] == "host1"


def test_a_flap_and_losses_change_no_bit(whole: HostNetwork) -> None:
    """A link that is down for less than the bound, then one that loses 5 % of the packets."""
    options = {"link_timeout": 10.0, "patience": 60.0}
    expected = results(whole, options, faulty=False)
    assert results(whole, options, faulty=True) == expected


def results(net: HostNetwork, options: dict[str, float], *, faulty: bool) -> list[object]:
    with Ranks(2, transport="tcp", network=net, **options) as ranks:
        ranks.start(sum_many, 300_000, 10)
        ranks.wait_mark("running")
        if faulty:
            net.drop(1, 5)
            net.link_down(1)
            # As long as the flap is to take; nothing waits for it to be long enough.
            time.sleep(1.5)
            net.link_up(1)
        outcomes = ranks.wait(60.0)
        net.mend()
    assert all(outcome.error is None for outcome in outcomes), outcomes
    values = [outcome.value for outcome in outcomes]
    assert values[0] == values[1]
    return values


def test_a_slow_link_is_called_slow(whole: HostNetwork) -> None:
    """Bytes move, few of them, for longer than patience: neither late nor dead."""
    options = {"link_timeout": LINK_TIMEOUT, "patience": 1.5, "stall_warning": 1.0}
    whole.set_rate("8mbit")
    with Ranks(2, transport="tcp", network=whole, **options) as ranks:
        ranks.start(sum_many, 1_000_000, 1)  # 4 MB each way, at 1 MB/s
        for outcome in ranks.wait(30.0):
            assert outcome.error is None, outcome
            assert "is slow" in outcome.output, outcome.output
            assert f"rank {1 - outcome.rank} on host{1 - outcome.rank}" in outcome.output
