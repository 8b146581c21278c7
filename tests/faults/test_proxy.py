"""F12: connections that are reset, delayed or silent in the middle of a message, or come by bytes.

A proxy sits between two ranks. The result is exact, or an error that names the other rank; never
other bytes than those that were sent.
"""

from __future__ import annotations

import random
import secrets
import socket
import sys

import pytest
import torch
from faulty_proxy import connect_through, faulty_proxy

from kadril.config import Config
from kadril.testing import Ranks, no_leaks
from kadril.testing.outcome import Outcome
from kadril.world import open_remote

BOUND = 5.0  # seconds; a busy machine included
PATIENCE = 1.5
COUNTS = (3, 50_000, 3)


def sum_through_proxy(
    rank: int, size: int, port: int, proxy_port: int, secret: bytes, counts: tuple[int, ...]
) -> int:
    """Sum arrays whose every element is checked; return how many."""
    connect_through(proxy_port)
    config = Config(transport="tcp", patience=PATIENCE, connect_timeout=10.0, link_timeout=5.0)
    with open_remote(rank, size, "127.0.0.1", port, secret, job="j", config=config) as world:
        for count in counts:
            x = torch.arange(count, dtype=torch.int64) * 3 + rank
            world.transport.allreduce(x)
            if not torch.equal(x, torch.arange(count, dtype=torch.int64) * 3 * size + 1):
                raise AssertionError("a wrong result was returned as a good one")
    return len(counts)


def run(counts: tuple[int, ...] = COUNTS, **faults: float) -> list[Outcome]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with no_leaks(), faulty_proxy() as proxy, Ranks(2, transport=None) as ranks:
        for name, value in faults.items():
            setattr(proxy, name, value)
        where = (port, proxy.port, secrets.token_bytes(32))
        return ranks.start(sum_through_proxy, *where, counts).wait(30.0)


def check_exact_or_told(outcomes: list[Outcome], story: str) -> None:
    for outcome in outcomes:
        assert not outcome.hung, f"{story}: {outcome}"
        if outcome.error is not None:
            assert outcome.error.type in ("PeerLost", "Stalled", "RendezvousError"), (
                f"{story}: {outcome}"
            )
            if outcome.error.type != "RendezvousError":
                assert outcome.error.fields["rank"] == 1 - outcome.rank, f"{story}: {outcome}"
                assert outcome.error.fields["elapsed"] < PATIENCE + BOUND, f"{story}: {outcome}"


def test_bytes_one_by_one() -> None:
    outcomes = run(counts=(3, 100, 3), chunk=1)
    assert [outcome.value for outcome in outcomes] == [3, 3], outcomes


def test_a_pause_in_the_middle_of_a_message() -> None:
    """Shorter than patience: nothing but time is lost."""
    outcomes = run(pause_after=100_000, pause=PATIENCE / 2)
    assert [outcome.value for outcome in outcomes] == [3, 3], outcomes


@pytest.mark.parametrize("after", [100_000, pytest.param(2000, marks=pytest.mark.long)])
def test_a_reset_in_the_middle_of_a_message(after: int) -> None:
    for outcome in run(reset_after=after):
        assert outcome.error is not None, outcome
        assert outcome.error.type == "PeerLost", outcome
        assert outcome.error.fields["rank"] == 1 - outcome.rank
        assert outcome.error.fields["operation"] == "allreduce"
        assert outcome.error.fields["elapsed"] < BOUND


def test_a_connection_that_falls_silent() -> None:
    """Both kernels answer, and no byte comes: the other rank is late, as far as one can know."""
    for outcome in run(silent_after=100_000):
        assert outcome.error is not None, outcome
        assert outcome.error.type in ("Stalled", "PeerLost"), outcome
        assert outcome.error.fields["rank"] == 1 - outcome.rank
        assert outcome.error.fields["elapsed"] < PATIENCE + BOUND


@pytest.mark.faults
@pytest.mark.timeout(3000)
def test_200_random_faults() -> None:
    first = random.SystemRandom().randrange(10**6)
    sys.stdout.write(f"seeds from {first}\n")
    for seed in range(first, first + 200):
        dice = random.Random(seed)
        fault = dice.choice(["reset_after", "silent_after", "pause_after"])
        options = {fault: dice.randrange(1, 900_000), "chunk": dice.choice([7, 1500, 1 << 16])}
        check_exact_or_told(run(pause=0.2, **options), f"seed {seed}: {options}")
