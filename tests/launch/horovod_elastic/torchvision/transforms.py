"""Transforms that do nothing: the data is made up."""

from __future__ import annotations

from typing import Any

__all__ = ["Compose", "Normalize", "ToTensor"]


class Compose:
    """Takes any arguments."""

    def __init__(self, *_: Any) -> None:
        pass


class ToTensor(Compose):
    """Takes any arguments."""


class Normalize(Compose):
    """Takes any arguments."""
