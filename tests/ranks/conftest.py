"""What the conformance tests need of pytest: an order by world, and transports by name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kadril.testing import RankPool
from kadril.testing.pool import Unavailable


@pytest.fixture
def transport(request: pytest.FixtureRequest, rank_pool: RankPool) -> str:
    """A transport that is there, for tests that call the pool themselves; by indirect parameter."""
    name: str = request.param
    try:
        rank_pool.worker_pool(name)
    except Unavailable as error:
        if request.config.getoption("--require-mpi") or request.config.getini("require_mpi"):
            pytest.fail(f"--require-mpi: {error}", pytrace=False)
        pytest.skip(str(error))
    return name


def world_of(item: pytest.Item) -> str | None:
    """The world in which a conformance test runs, such as "3-c10d"."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or not item.path.name.startswith("test_conformance_"):
        return None
    world = callspec.params.get("world")
    return None if world is None else repr(world)


def in_order_of_worlds(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Tests of one world next to each other, worlds in the order in which they first appear."""
    worlds = list(dict.fromkeys(world_of(item) for item in items))
    return sorted(items, key=lambda item: worlds.index(world_of(item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The pool keeps a few worlds; a test that comes back to another has to open it again."""
    places = [place for place, item in enumerate(items) if world_of(item) is not None]
    for place, item in zip(places, in_order_of_worlds([items[i] for i in places]), strict=True):
        items[place] = item
