"""F09, F10, F11 on hosts with links of their own: cut while ranks meet, flaps, losses, 1 Mbit/s.

`tests/ranks/test_several_hosts.py` has cuts in the middle of a call.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import pytest
import torch

from kadril.config import Config
from kadril.testing import HostNetwork, Ranks, faults, hosts
from kadril.testing.outcome import Outcome
from kadril.testing.worlds import PORT
from kadril.world import open_remote

CONNECT_TIMEOUT = 2.0
LINK_TIMEOUT = 2.0
MARGIN = 6.0  # two looks, a note of the other side, and a busy machine


@pytest.fixture(scope="module")
def net() -> Iterator[HostNetwork]:
    with hosts(2, ssh=False) as network:
        yield network


@pytest.fixture
def whole(net: HostNetwork) -> Iterator[HostNetwork]:
    """The network, put in order after the test."""
    yield net
    net.mend()
    net.link_up(1)
    net.set_rate(None)


def open_and_sum(
    rank: int, size: int, address: str, secret: bytes, generation: int, link_timeout: float
) -> tuple[int, list[float]]:
    """Meet, then sum random numbers again and again; return the sum of all results."""
    config = Config(
        transport="tcp",
        patience=60.0,
        connect_timeout=CONNECT_TIMEOUT if link_timeout < 5.0 else 30.0,
        link_timeout=link_timeout,
    )
    faults.gate("meet")
    world = open_remote(
        rank, size, address, PORT, secret, job="j", generation=generation, config=config
    )
    with world:
        total = torch.zeros(100_000)
        faults.mark("running")
        for number in range(20):
            drawn = torch.Generator().manual_seed(number * size + rank)
            x = torch.rand(100_000, generator=drawn)
            world.transport.allreduce(x)
            total += x
    return generation, total[::1000].tolist()


def start(net: HostNetwork, ranks: Ranks, generations: tuple[int, int], timeout: float) -> None:
    """Have both ranks wait before they meet."""
    where = (net.hosts[0].address, secrets.token_bytes(32))
    ranks.start(open_in_generation, *where, generations, timeout).wait_mark("meet")


def open_in_generation(
    rank: int, size: int, address: str, secret: bytes, generations: tuple[int, int], timeout: float
) -> tuple[int, list[float]]:
    return open_and_sum(rank, size, address, secret, generations[rank], timeout)


def test_a_link_that_is_down_while_ranks_meet(whole: HostNetwork) -> None:
    """F09: no rank gets a world, on either side."""
    with Ranks(2, transport=None, network=whole) as ranks:
        start(whole, ranks, (0, 0), LINK_TIMEOUT)
        whole.link_down(1)
        began = time.monotonic()
        ranks.open_gate("meet")
        for outcome in ranks.wait(30.0):
            assert outcome.error is not None, outcome
            assert outcome.error.type == "RendezvousError", outcome
            assert outcome.finished is not None
            assert outcome.finished - began < CONNECT_TIMEOUT + MARGIN, outcome


@pytest.mark.long
def test_the_two_sides_of_a_cut_do_not_go_on_apart(whole: HostNetwork) -> None:
    """F09: a rank of an earlier generation does not join one that has gone on without it."""
    with Ranks(2, transport=None, network=whole) as ranks:
        start(whole, ranks, (1, 0), LINK_TIMEOUT)
        ranks.open_gate("meet")
        for outcome in ranks.wait(30.0):
            assert outcome.error is not None, outcome
            assert outcome.error.type == "RendezvousError", outcome


def run_over(net: HostNetwork, fault: str) -> list[object]:
    outcomes = outcomes_over(net, fault)
    assert all(outcome.error is None for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes]


def outcomes_over(net: HostNetwork, fault: str) -> list[Outcome]:
    with Ranks(2, transport=None, network=net) as ranks:
        start(net, ranks, (0, 0), 20.0)
        ranks.open_gate("meet")
        ranks.wait_mark("running")
        if fault == "flaps":
            for _ in range(3):
                net.link_down(1)
                time.sleep(0.5)  # as long as a flap is to take
                net.link_up(1)
                time.sleep(0.1)
        elif fault:
            net.drop(1, float(fault))
        return ranks.wait(100.0)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["flaps", "5", "20"])
def test_flaps_and_losses_change_no_bit(whole: HostNetwork, fault: str) -> None:
    """F10, F11: three flaps of half a second; 5 and 20 % of all packets lost."""
    assert run_over(whole, fault) == run_over(whole, "")


@pytest.mark.long
def test_two_packets_of_five_lost(whole: HostNetwork) -> None:
    """F11: TCP itself may fall silent for longer than a link may; then both sides say so."""
    expected = run_over(whole, "")
    for outcome in outcomes_over(whole, "40"):
        if outcome.error is None:
            assert outcome.value == expected[outcome.rank]
        else:
            assert outcome.error.type == "PeerLost", outcome
            assert outcome.error.fields["rank"] == 1 - outcome.rank


@pytest.mark.long
def test_one_megabit(whole: HostNetwork) -> None:
    """F11: 16 MB need two minutes; bytes move, so nobody is taken for dead."""
    expected = run_over(whole, "")
    whole.set_rate("1mbit")
    with Ranks(2, transport=None, network=whole) as ranks:
        start(whole, ranks, (0, 0), 20.0)
        ranks.open_gate("meet")
        outcomes = ranks.wait(110.0)
    assert [outcome.value for outcome in outcomes] == expected
