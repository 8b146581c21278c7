"""The probe of tiers on ranks: measured once, chosen alike on all, read from the file next time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from kadril.testing import ranks
from kadril.transport.tiers.tier_plan import WayLimits
from kadril.transport.tiers.tier_tuning import cached_tunings
from kadril.transport.tiers.tiered import TieredTransport
from kadril.world import World


@contextmanager
def cache_in(path: Path) -> Iterator[None]:
    """Keep what is measured in a directory of the test."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before


@ranks(4, transports=("tiered",))
def test_tiers_are_measured_once(world: World, tmp_path: Path) -> None:
    transport = world.transport
    assert isinstance(transport, TieredTransport)
    with cache_in(tmp_path):
        lines = transport.tune()
        transport.barrier()
        (known,) = cached_tunings()
        assert known.topology == transport.topology
        assert known.limits == transport.limits
        assert {each.tier for each in known.measured} == {0, 1}
        assert all(each.speed.bandwidth > 0 and each.speed.latency > 0 for each in known.measured)
        assert any("inside a host" in line for line in lines)
        assert transport.tune() == lines  # with the very moment at which it was measured
        rows = transport.allgather_bytes(repr(transport.limits).encode().ljust(100))
        assert len(set(rows)) == 1
        transport.barrier()
        transport.tune(again=True)
        transport.barrier()
        assert cached_tunings()[0].made > known.made


@ranks(4, transports=("tiered",))
def test_sums_are_the_same_whichever_way_they_take(world: World) -> None:
    transport = world.transport
    assert isinstance(transport, TieredTransport)
    before = transport.limits
    try:
        for limits in (WayLimits(0, 0), WayLimits(0, 1 << 30), WayLimits(1 << 30, 1 << 30)):
            transport.limits = limits
            x = torch.arange(5000, dtype=torch.float32) + world.rank
            transport.allreduce(x)
            assert torch.equal(x, 4 * torch.arange(5000, dtype=torch.float32) + 6)
    finally:
        transport.limits = before


@ranks(2)
def test_one_host_has_nothing_to_choose(world: World) -> None:
    assert world.transport.tune() == []
