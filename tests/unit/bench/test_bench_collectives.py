"""Sizes of collectives, and the bandwidths made of them, as nccl-tests define them."""

from __future__ import annotations

import pytest

from kadril.bench.collectives import COLLECTIVES, whole_bytes
from kadril.transport.base import Transport

# factor on 2 and on 4 ranks, worked out by hand
FACTORS = {
    "allreduce": (1.0, 1.5),
    "reduce": (1.0, 1.0),
    "broadcast": (1.0, 1.0),
    "allgatherv": (0.5, 0.75),
    "reduce_scatterv": (0.5, 0.75),
    "alltoallv": (0.5, 0.75),
    "exchange": (1.0, 1.0),
    "barrier": (0.0, 0.0),
}


def test_every_collective_of_a_transport_is_measured() -> None:
    others = {"split", "duplicate", "open_flat", "revoke", "close"}
    others |= {"allreduce_many"}  # all-reduces, one after the other where there are no tiers
    others |= {"allgather_bytes", "tune"}  # a few bytes, to agree; it measures by itself
    methods = {name for name in vars(Transport) if not name.startswith("_")} - others
    assert set(COLLECTIVES) == {name for name in methods if callable(getattr(Transport, name))}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_bus_factors(name: str) -> None:
    factor = COLLECTIVES[name].bus_factor
    assert (factor(2), factor(4)) == FACTORS[name]


def test_sizes_are_whole_elements_and_whole_parts() -> None:
    assert whole_bytes(COLLECTIVES["allreduce"], 5, 4) == 8
    assert whole_bytes(COLLECTIVES["allreduce"], 64 << 20, 3) == 64 << 20
    assert whole_bytes(COLLECTIVES["allgatherv"], 4, 4) == 16
    assert whole_bytes(COLLECTIVES["alltoallv"], 1 << 20, 3) == 1048584
    assert whole_bytes(COLLECTIVES["barrier"], 1 << 20, 2) == 0
