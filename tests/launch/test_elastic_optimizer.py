"""Elastic jobs of which a rank dies around a reduction of gradients: the others go on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elastic_optimizer_program import quiet_digest
from launch_playground import Playground

PROGRAM = Path(__file__).with_name("elastic_optimizer_program.py")
KINDS = ["plain", "late", "passes", "two", "own", "sparse", "delta", "scaled", "clipped", "trainer"]
PLACES = ["backward", "between", "silent", "step"]
EVERYDAY = {("plain", "silent", "shm"), ("two", "between", "shm"), ("late", "backward", "tcp")}
CASES = [
    pytest.param(kind, place, transport, marks=[] if is_everyday else [pytest.mark.long])
    for kind in KINDS
    for place in PLACES
    for transport in ("shm", "tcp")
    for is_everyday in [(kind, place, transport) in EVERYDAY]
    if (kind, transport) != ("trainer", "tcp") and (kind, place) != ("trainer", "step")
]


@pytest.mark.parametrize(("kind", "place", "transport"), CASES)
def test_a_rank_dies_around_a_reduction(
    playground: Playground, kind: str, place: str, transport: str
) -> None:
    """Going back to the commit reduced what was pending with the dead, and ended survivors.

    Over tcp gradients are submitted during the backward pass.
    """
    check(playground, "-np 3 --min-np 2 --no-replace", 2, kind, f"{place}:4:1", transport)


@pytest.mark.long
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_died_so_is_replaced(playground: Playground, kind: str, transport: str) -> None:
    """A new rank has the names of requests and the gradients that the survivors have."""
    if (kind, transport) == ("trainer", "tcp"):
        pytest.skip("its parameters lie in shared memory")
    check(playground, "-np 2 --min-np 2 --spares 0", 2, kind, "between:3:0", transport)


def check(
    playground: Playground, flags: str, size: int, kind: str, fault: str, transport: str
) -> None:
    env = {"TORCHINDUCTOR_CACHE_DIR": str(playground.directory), "KADRIL_TRANSPORT": transport}
    result = playground.start(*flags.split(), PROGRAM, kind, fault, env=env).finish(timeout=100.0)
    said = result.err.decode()
    assert result.code == 0, said
    found = re.findall(r"end: rank (\d+) of (\d+) .* weights (\w+)", result.out.decode())
    weights = quiet_digest(kind)
    assert sorted(found) == [(f"{rank}", f"{size}", weights) for rank in range(size)], said
    assert any(line.startswith("generation 1: ") for line in result.report)
