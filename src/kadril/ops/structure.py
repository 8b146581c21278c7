"""The structure of a distributed tensor: what each worker of a partition holds of it.

It is agreed on in one small all-gather at every call, so that what follows from it (who sends what
to whom) is decided alike on all workers, also when the block of only one of them has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from kadril.errors import MismatchError
from kadril.partition import Interval, Partition, intervals_of
from kadril.partition.pairing import index_of, text
from kadril.transport.buffer import TORCH_DTYPES

__all__ = ["PlanCache", "Structure", "agree"]

MAX_DIMS = 12
DTYPES = list(TORCH_DTYPES)

Plan = TypeVar("Plan")


class Structure(NamedTuple):
    """What the workers hold, in their order.

    Attributes:
        partition_shape: workers along each axis.
        shapes: of each worker's block.
        dtype: of all.
        requires_grad: whether any of them does.
    """

    partition_shape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    requires_grad: bool

    def blocks(self, what: str) -> list[list[Interval]]:
        """For each dim, the interval of the global tensor at each position along its axis.

        Raises:
            ValueError: the partition has not as many axes as the tensor has dims.
            MismatchError: the blocks do not make up a tensor.
        """
        num_dims = len(self.shapes[0])
        if len(self.partition_shape) != num_dims:
            raise ValueError(
                f"{what}: a tensor of {num_dims} dims cannot lie on a partition of shape"
                f" {text(self.partition_shape)}; give the partition one axis for each dim"
            )
        sizes = [[-1] * length for length in self.partition_shape]
        for rank, shape in enumerate(self.shapes):
            for dim, position in enumerate(index_of(rank, self.partition_shape)):
                known = sizes[dim][position]
                if known not in (-1, shape[dim]):
                    raise MismatchError(
                        f"{what}: blocks do not fit together: along dim {dim}, workers at position"
                        f" {position} of the axis have {known} and (rank {rank}) {shape[dim]}"
                        " elements; workers in line must have blocks of the same size"
                    )
                sizes[dim][position] = shape[dim]
        return [intervals_of(each) for each in sizes]


def agree(partition: Partition, x: torch.Tensor, what: str) -> Structure:
    """What all workers of a partition hold; collective over it.

    Raises:
        MismatchError: they hold tensors of different dtypes or numbers of dims.
        ValueError: a tensor of more dims than can be told.
    """
    if x.dim() > MAX_DIMS:
        raise ValueError(f"{what}: a tensor may have {MAX_DIMS} dims, got {x.dim()}")
    header = (x.dim(), DTYPES.index(x.dtype), int(x.requires_grad))
    if partition.size == 1:
        return Structure(partition.shape, (tuple(x.shape),), x.dtype, x.requires_grad)
    mine = np.zeros(len(header) + MAX_DIMS, dtype=np.int64)
    mine[: len(header) + x.dim()] = [*header, *x.shape]
    rows = np.empty((partition.size, mine.size), dtype=np.int64)
    partition.transport.allgatherv(mine, rows, [mine.size] * partition.size, name=what)
    found = rows.tolist()
    if any(row[:2] != found[0][:2] for row in found):
        calls = {
            partition.ranks[rank]: f"{DTYPES[row[1]]} of shape {row[3 : 3 + row[0]]}"
            for rank, row in enumerate(found)
        }
        lines = "".join(f"\n  rank {rank}: {call}" for rank, call in calls.items())
        raise MismatchError(
            f"{what}: workers hold tensors of different dtypes or numbers of dims:{lines}", calls
        )
    shapes = tuple(tuple(row[3 : 3 + row[0]]) for row in found)
    return Structure(partition.shape, shapes, x.dtype, any(row[2] for row in found))


class PlanCache:
    """Plans by what they follow from; the last few are kept."""

    def __init__(self, capacity: int = 16) -> None:
        self._capacity = capacity
        self._plans: dict[Hashable, object] = {}

    def get(self, key: Hashable, make: Callable[[], Plan]) -> Plan:
        """The plan for a key, made where there is none."""
        plan = self._plans.get(key)
        if plan is None:
            plan = make()
            while len(self._plans) >= self._capacity:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan
        return plan  # type: ignore[return-value]
