"""A block of memory that all ranks of a host see, and that lives until the last one releases it.

Rank 0 allocates it in the arena. Every rank has a view of it, which the tensors made from it keep
alive. When the view dies the rank sets its flag, at the head of the block:

    | flag 0 | flag 1 | ...  | bytes for everybody                    |
      one cache line each

Rank 0 frees the block when it finds all flags set. Until then it keeps the block, beyond its own
use, the end of the world and of the interpreter: otherwise a rank that still evaluates the model
would read zeros.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref

import numpy as np
import numpy.typing as npt
import torch

from kadril import _native
from kadril.sharded.ownership.ownership_plan import LINE_BYTES
from kadril.transport.base import Transport
from kadril.transport.tensor import memory_tensor

__all__ = ["forget_other_worlds", "scratch_bytes", "share_block"]

logger = logging.getLogger("kadril")

Bytes = npt.NDArray[np.uint8]


class AllocatedBlocks:
    """Blocks that this process has allocated, and that some rank may still use."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Bytes, Bytes, _native.Segment]] = []

    def add(self, block: Bytes, flags: Bytes, segment: _native.Segment) -> None:
        """Keep a block until all its flags are set."""
        # This reference outlives the list, which the interpreter clears at its end while peers may
        # still run.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(block))
        self._blocks.append((block, flags, segment))

    def sweep(self) -> None:
        """Free the blocks that no rank uses any more."""
        self._free([bool(flags[:, 0].all()) for _, flags, _ in self._blocks])

    def forget_others(self, segment: _native.Segment) -> None:
        """Free the blocks of all other segments: a rank that has died never sets its flag."""
        self._free([other is not segment for _, _, other in self._blocks])

    def _free(self, is_unused: list[bool]) -> None:
        pairs = list(zip(self._blocks, is_unused, strict=True))
        self._blocks = [pair for pair, unused in pairs if not unused]
        for (block, _, _), unused in pairs:
            if not unused:
                continue
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(block))


_allocated = AllocatedBlocks()


def share_block(
    transport: Transport,
    num_bytes: int,
    otherwise: str = "parameters stay in private memory, one copy per rank",
) -> torch.Tensor | None:
    """Allocate zeroed bytes that all ranks see; collective. None where there is no such memory.

    Tensors made from the result keep the memory alive, on every rank.

    Args:
        transport: transport over the ranks.
        num_bytes: number of bytes.
        otherwise: consequence of there being no room; for the log.
    """
    memory = transport.shared_memory
    if memory is None or num_bytes == 0:
        return None
    _allocated.sweep()
    num_flag_bytes = transport.size * LINE_BYTES
    total = num_flag_bytes + num_bytes
    block: Bytes | None = None
    offset = -1
    if transport.rank == 0:
        made = memory.segment.allocate(memory.rank, total)
        if isinstance(made, _native.Failure):
            logger.warning(
                "%s: there is no room for %d shared bytes (%d can be had);"
                " KADRIL_SHARED_CAPACITY may give more",
                otherwise,
                total,
                made.available,
            )
        else:
            block = made
            offset = int(memory.segment.offset_of(made.ctypes.data, total) or 0)
    word = offset.to_bytes(8, "little", signed=True)
    words = transport.allgather_bytes(word, name="share_block")
    offset = int.from_bytes(words[0], "little", signed=True)
    if offset < 0:
        return None
    flags = memory.segment.view(offset, num_flag_bytes).reshape(transport.size, LINE_BYTES)
    if block is not None:
        _allocated.add(block, flags, memory.segment)
    view = memory.segment.view(offset + num_flag_bytes, num_bytes)
    finalizer = weakref.finalize(view, release, flags, transport.rank, os.getpid())
    finalizer.atexit = False
    return memory_tensor(view)


def forget_other_worlds(transport: Transport) -> None:
    """Free the blocks of worlds that this process has left; no rank may use them any more."""
    if transport.shared_memory is not None:
        _allocated.forget_others(transport.shared_memory.segment)


def release(flags: Bytes, rank: int, process: int) -> None:
    """Set the flag of a rank that does not use a block any more."""
    if os.getpid() != process:
        return  # a child made by fork has copies of the parent's views, which the parent still uses
    flags[rank, 0] = 1
    _allocated.sweep()


def scratch_bytes(transport: Transport, num_bytes: int, device: torch.device) -> torch.Tensor:
    """Allocate memory of this rank to collect gradients in; shared where that saves a copy."""
    memory = transport.shared_memory
    if memory is not None and device.type == "cpu":
        try:
            return memory_tensor(memory.empty(num_bytes))
        except MemoryError as error:
            logger.warning("gradients are collected in private memory, which is slower: %s", error)
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)
