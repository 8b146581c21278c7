"""Tools of the conformance tests: the transports they run on, and small helpers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from kadril.errors import MismatchError
from kadril.testing import ranks
from kadril.transport.base import Transport
from kadril.transport.buffer import Array

__all__ = [
    "TRANSPORTS",
    "as_numpy",
    "offsets",
    "on_all_transports",
    "on_some_ranks",
    "raises_mismatch",
    "uneven_counts",
]

TRANSPORTS = ("shm", "c10d", "tcp", "mpi:openmpi", "mpi:mpich", "tiered")

# Every test of the conformance suite runs on worlds of these sizes, on every transport.
on_all_transports = ranks(1, 2, 3, 4, transports=TRANSPORTS, timeout=100.0)
on_some_ranks = ranks(2, 3, 4, transports=TRANSPORTS, timeout=100.0)


def uneven_counts(size: int, base: int) -> list[int]:
    """Counts that differ from rank to rank; some are 0."""
    return [0 if rank % 3 == 1 else base + rank for rank in range(size)]


def as_numpy(tensor: torch.Tensor) -> Array:
    """The same memory as a numpy array, or the tensor itself where numpy has no such dtype."""
    return tensor if tensor.dtype == torch.bfloat16 else tensor.numpy()


@contextmanager
def raises_mismatch(transport: Transport, *texts: str) -> Iterator[None]:
    """Require a `MismatchError` that shows these texts, and that the next call works."""
    with pytest.raises(MismatchError) as caught:
        yield
    assert sorted(caught.value.calls) == sorted(transport.world_ranks)
    for text in texts:
        assert text in str(caught.value)
        assert any(text in call for call in caught.value.calls.values())
    count = torch.ones(3)
    transport.allreduce(count)
    assert count.tolist() == [transport.size] * 3


def offsets(counts: Sequence[int]) -> list[int]:
    """Return where each part begins, and where the last ends."""
    return [0, *np.cumsum(counts, dtype=np.int64).tolist()]
