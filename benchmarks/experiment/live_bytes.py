"""Bytes of tensors that live at once: every storage that a call makes, until it is freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["most_live_bytes"]


class LiveBytes(TorchDispatchMode):
    """Counts the storages of results of operations while they live.

    Attributes:
        most: bytes, at the time when they were most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.most = 0
        self.known: set[int] = set()

    def forget(self, address: int, size: int) -> None:
        """Count a storage no more."""
        self.known.discard(address)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count what is new in its results."""
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                address, size = storage.data_ptr(), storage.nbytes()
                if size and address not in self.known:
                    self.known.add(address)
                    weakref.finalize(storage, self.forget, address, size)
                    self.now += size
                    self.most = max(self.most, self.now)
        return result


def most_live_bytes(call: Callable[[], object]) -> int:
    """Return the most bytes of tensors, made during a call, that lived at once."""
    with LiveBytes() as count:
        call()
    return count.most
