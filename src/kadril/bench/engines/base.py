"""Interface of an engine that can be measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from kadril.bench.workload import Floats, Workload

__all__ = ["Engine", "Unsupported", "plain_array"]


class Unsupported(Exception):  # noqa: N818 - reads as what happened
    """The engine has no such collective."""


class Engine(Protocol):
    """One way to move memory between ranks."""

    def allocate(self, count: int, memory: str) -> Any:
        """Return an array of float32 for its calls, of the kind that its users have."""
        ...

    def look(self, array: Any) -> Floats:
        """Return the same memory as a numpy array."""
        ...

    def bind(self, work: Workload) -> Callable[[], object]:
        """Return the call to measure, with its arguments ready.

        Raises:
            Unsupported: it has no such collective.
        """
        ...

    def version(self) -> str:
        """Name and version, for the report."""
        ...

    def close(self) -> None:
        """Leave; collective."""
        ...


def plain_array(count: int, memory: str) -> Floats:
    """Memory of this process, from the same allocator for every engine.

    Args:
        count: number of elements.
        memory: "torch", where the arrays of a training come from; or "numpy", which asks the kernel
            for huge pages, so that large arrays are faster for everybody.
    """
    if memory == "numpy":
        return np.empty(count, dtype=np.float32)
    from kadril.needs_torch import torch

    array: Floats = torch.empty(count, dtype=torch.float32).numpy()
    return array
