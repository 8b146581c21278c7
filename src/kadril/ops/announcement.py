"""Telling ranks that hold nothing of a tensor what those that do hold."""

from __future__ import annotations

import numpy as np

from kadril.ops.structure import DTYPES, Structure
from kadril.partition import Partition

__all__ = ["announce"]


def announce(
    audience: Partition, mine: Structure | None, owners: Partition, what: str
) -> Structure:
    """Give the structure of a tensor on one partition to all workers of a larger one.

    Args:
        audience: who gets it; collective over it.
        mine: the structure, on the owners.
        owners: who have it.
        what: for errors.
    """
    if audience.ranks == owners.ranks and mine is not None:
        return mine
    root = audience.ranks.index(owners.ranks[0])
    data = None
    if mine is not None and audience.rank == root:
        num_dims = len(mine.shapes[0])
        header = [num_dims, DTYPES.index(mine.dtype), int(mine.requires_grad)]
        data = np.array(
            [*header, *(length for shape in mine.shapes for length in shape)], dtype=np.int64
        )
    told = audience.broadcast_data(data, root)
    if told is None:
        raise AssertionError("only workers of the audience come here")
    num_dims, dtype, requires_grad, *lengths = told.tolist()
    shapes = tuple(
        tuple(lengths[start : start + num_dims]) for start in range(0, len(lengths), num_dims)
    )
    if not num_dims:
        shapes = ((),) * owners.size
    return Structure(owners.shape, shapes, DTYPES[dtype], bool(requires_grad))
