"""A world of one without processes: all that the conformance tests ask of a world of one."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import test_conformance_groups
import test_conformance_misuse
import test_conformance_move
import test_conformance_reduce
import test_conformance_shapes

from kadril.testing.decorator import ranks_options
from kadril.transport.alone import AloneTransport
from kadril.transport.base import Transport
from kadril.world.layout import Layout


def bodies(module: ModuleType) -> list[Callable[[Any], None]]:
    """The tests of a module that run in worlds of one."""
    marked = [(function, ranks_options(function)) for function in vars(module).values()]
    return [function for function, mark in marked if mark is not None and 1 in mark.sizes]


BODIES = [
    body
    for module in (
        test_conformance_groups,
        test_conformance_misuse,
        test_conformance_move,
        test_conformance_reduce,
        test_conformance_shapes,
    )
    for body in bodies(module)
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__.removeprefix("test_"))
def test_alone(body: Callable[[Any], None]) -> None:
    transport = AloneTransport()
    body(SimpleNamespace(rank=0, size=1, transport=transport, layout=Layout.of("A")))
    transport.close()


def test_it_keeps_its_world_rank() -> None:
    transport = AloneTransport(5)
    assert isinstance(transport, Transport)
    assert (transport.kind, transport.rank, transport.size) == ("alone", 0, 1)
    group = transport.split(3)
    assert group is not None
    assert group.world_ranks == transport.world_ranks == (5,)
