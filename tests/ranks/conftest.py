"""Set-up of tests on ranks: which worlds are for every day, their order, transports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from kadril.testing import RankPool
from kadril.testing.fork_client import current_fork_client
from kadril.testing.messages import Target
from kadril.testing.pool import Unavailable

HERE = Path(__file__).parent

# Folders whose tests have models, which import torch's compiler sooner or later.
WITH_MODELS = {"nn", "sharded", "experiment", "torch", "torch_training"}

# Sizes of worlds for every day, of a test that has several on such a transport. What depends on the
# number of ranks is one code for all networks (`NetworkTransport`), and what a network does for an
# exchange does not depend on it: so all of these together see each size on a network, and each
# network. `make faults` has every pair. On shared memory they are for tests of all transports:
# native tests, and tests of layers, run with more ranks there. Tests on shared memory alone run at
# all of their sizes but 2 where they have 3 or 4: what goes wrong with one peer goes wrong with
# two, and the many tests that have two ranks only see what is particular to a pair.
EVERYDAY_SIZES = {
    "shm": {2, 3},
    "c10d": {1, 3},
    "mpi:openmpi": {2},
    "mpi:mpich": {4},
    "tiered": {3},
}


@pytest.fixture(scope="session", autouse=True)
def imported_once(request: pytest.FixtureRequest) -> None:
    """Import what takes seconds before ranks are forked, each of which would import it.

    Ranks that take the place of dead ones would, too.
    """
    if any(item.path.parent.name in WITH_MODELS for item in request.session.items):
        file = HERE / "rank_imports.py"
        current_fork_client().load(Target(str(file), file.stem, ""))


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


def mark_rare_worlds(items: Sequence[pytest.Item]) -> None:
    """Mark tests in worlds that are not for every day as `long`."""
    worlds = []
    sizes: dict[tuple[str, str], set[int]] = defaultdict(set)
    transports: dict[str, set[str]] = defaultdict(set)
    for item in items:
        callspec = getattr(item, "callspec", None)
        world = None if callspec is None else callspec.params.get("world")
        if world is not None and item.path.is_relative_to(HERE):
            test = (item.nodeid.partition("[")[0], world.key.transport)
            worlds.append((item, test, world.key))
            sizes[test].add(world.key.size)
            transports[test[0]].add(world.key.transport)
    for item, test, key in worlds:
        everyday = EVERYDAY_SIZES.get(key.transport, sizes[test])
        if transports[test[0]] == {"shm"}:
            everyday = sizes[test] - ({2} if sizes[test] & {3, 4} else set())
        if key.size not in (everyday & sizes[test] or {max(sizes[test])}):
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark rare worlds, and keep conformance tests of one world together.

    The pool keeps a few worlds; a test that comes back to another has to open it again.
    """
    mark_rare_worlds(items)
    places = [place for place, item in enumerate(items) if world_of(item) is not None]
    for place, item in zip(places, in_order_of_worlds([items[i] for i in places]), strict=True):
        items[place] = item
