"""Process sets."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from .._forward import forward

__getattr__ = forward("kadril.torch")


def _setup(basics: Any) -> None:
    """Do nothing: the sets are those of the engine, whose basics are the same for all."""


def _init_process_sets(process_set_list: Sequence[Any]) -> None:
    """Register process sets; collective. Those of an earlier call are there already."""
    importlib.import_module("kadril.torch").init(None, process_set_list)
