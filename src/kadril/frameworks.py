"""Frameworks whose arrays kadril moves, each of which may or may not be installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

__all__ = ["FRAMEWORKS", "framework_folders", "is_installed"]

FRAMEWORKS = ("torch", "tensorflow", "keras")


def is_installed(name: str) -> bool:
    """Whether a package is installed; it is not loaded."""
    spec = importlib.util.find_spec(name)
    # A folder of that name somewhere on the path is no package, but looks like a part of one.
    return spec is not None and spec.origin is not None


def framework_folders() -> Iterator[str]:
    """Yield the folders of the frameworks that are installed, without loading them."""
    for name in FRAMEWORKS:
        spec = importlib.util.find_spec(name)
        if spec is not None:
            yield from spec.submodule_search_locations or ()
