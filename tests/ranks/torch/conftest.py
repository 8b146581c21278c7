"""An order by world for the tests of this folder: the pool keeps only a few worlds open."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def world_of(item: pytest.Item) -> str:
    """The world in which a test runs, or nothing for one that runs in the session."""
    callspec = getattr(item, "callspec", None)
    world = None if callspec is None else callspec.params.get("world")
    return "" if world is None else repr(world.key)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one world next to each other, worlds in the order in which they first appear."""
    places = [place for place, item in enumerate(items) if item.path.parent == HERE]
    mine = [items[place] for place in places]
    worlds = list(dict.fromkeys(world_of(item) for item in mine))
    mine.sort(key=lambda item: worlds.index(world_of(item)))
    for place, item in zip(places, mine, strict=True):
        items[place] = item
