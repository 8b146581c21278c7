"""Modules whose names live in kadril, and are looked up there at their first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["expose", "forward"]


def forward(*homes: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module whose names are those of other modules.

    Args:
        homes: where names are looked for, in this order. They are imported when a name is asked
            for and not before, so that a module that needs torch can be imported without it.
    """

    def look_up(name: str) -> Any:
        modules = map(importlib.import_module, homes)
        if name == "__all__":  # for `from ... import *`
            return sorted({each for module in modules for each in module.__all__})
        if not name.startswith("__"):
            for module in modules:
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"no {name!r} here: it is not in {' or '.join(homes)}")

    return look_up


def expose(namespace: dict[str, Any], home: str, *apart: str) -> None:
    """Give a module every name of another one at once, but for those that are apart.

    Args:
        namespace: `globals()` of the module.
        home: where the names are.
        apart: names that the module has by itself, or that are looked up at their first use.
    """
    module = importlib.import_module(home)
    names = list(module.__all__)
    namespace.update({name: getattr(module, name) for name in names if name not in apart})
    namespace["__all__"] = names
