"""Memory of gradients that are posted, used again for this rank's sums of them.

Sums stay until the round ends, and gradients do not. An allocator that puts a sum into the hole
that a gradient left has no room there for the next gradient, and takes more from the system; that
of glibc cannot even put a gradient into the hole of another of its size (it looks for more, so as
to align it). So some gradients stay, with sums in them:

    gradient of bucket 0   | sum of bucket 0, in place | sum of bucket 1 |     rank 0 of 2
    gradient of bucket 1   freed
    gradient of bucket 2   | sum of bucket 2, in place | sum of bucket 3 |
"""

from __future__ import annotations

import torch

from kadril.sharded.ownership.ownership_plan import LINE_BYTES

__all__ = ["RecycledMemory", "is_unshared", "is_writable"]

# Less is not worth a place in the list.
LEAST_BYTES = 1 << 12


class RecycledMemory:
    """Pieces of memory that nobody needs any more."""

    def __init__(self) -> None:
        self._pieces: list[torch.Tensor] = []

    def give(self, memory: torch.Tensor) -> None:
        """Add contiguous memory of one dim, from its first cache line on."""
        item = memory.element_size()
        begin = -memory.data_ptr() % LINE_BYTES // item
        if (memory.numel() - begin) * item >= LEAST_BYTES:
            self._pieces.append(memory[begin:])

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Return memory for some elements; None where no piece is as large."""
        for place, piece in enumerate(self._pieces):
            if piece.dtype == dtype and piece.numel() >= count:
                del self._pieces[place]
                self.give(piece[count:])
                return piece[:count]
        return None

    def clear(self) -> None:
        """Free all pieces."""
        self._pieces.clear()


def is_writable(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor is torch's own, and not an array of somebody else's."""
    # What comes from elsewhere cannot be resized.
    return tensor.is_cpu and tensor.untyped_storage().resizable()


def is_unshared(tensor: torch.Tensor) -> bool:
    """Whether a tensor that is not a view has the only reference to its memory, which is torch's.

    Then nobody sees what is written there. Hooks of users may have kept a gradient.
    """
    if not tensor.is_cpu:
        return False
    storage = tensor.untyped_storage()
    # The tensor has one, `storage` another; after two calls of `untyped_storage` there are three.
    return torch._C._storage_Use_Count(storage._cdata) <= 2 and storage.resizable()
