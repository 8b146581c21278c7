"""A plain copy of as many bytes, on all ranks at the same time: what the memory bus allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kadril import _native
from kadril.bench.collectives import ITEM_BYTES
from kadril.bench.engines.base import Unsupported, plain_array
from kadril.bench.workload import Floats, Workload

__all__ = ["CopyEngine"]


class CopyEngine:
    """The native core's copy between two arrays of one process; nothing goes to another rank."""

    def allocate(self, count: int, memory: str) -> Floats:
        """See `Engine`."""
        return plain_array(count, memory)

    def look(self, array: Floats) -> Floats:
        """See `Engine`."""
        return array

    def bind(self, work: Workload) -> Callable[[], object]:
        """See `Engine`."""
        if work.collective != "copy":
            raise Unsupported(f"a copy cannot stand for {work.collective}")
        target, source = work.target.ctypes.data, work.source.ctypes.data
        return partial(_native.copy_memory, target, source, work.count * ITEM_BYTES)

    def version(self) -> str:
        """See `Engine`."""
        return "plain copy on all ranks at once"

    def close(self) -> None:
        """See `Engine`."""
