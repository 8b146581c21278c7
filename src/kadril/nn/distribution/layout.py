"""Layouts: which axis of a partition splits which dim of a tensor.

    partition  2 x 1 x 2 x 2          layout of an image   (0, None, 2, 3)
                                      layout of its features, gathered   (0, None)

A dim with None is whole on every worker. Axes that a layout does not name hold *replicas*: workers
that differ only along them hold the same values. A replicated vector counts once (see
`ops/replicated.py`). Axes of length 1 split nothing, so layouts do not name them.

A layout divides the partition into *subgrids*: the workers of one subgrid differ only along the
axes that the layout names. Each subgrid is a partition of its own, with one axis for each dim of
the tensor; layers get it as `P_x`, and know nothing of the replicas beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from kadril.nn.distribution.nested import map_leaves
from kadril.partition import Group, Partition, balanced_intervals

__all__ = [
    "Layout",
    "Subgrids",
    "axes_of",
    "block_shape",
    "layout_on",
    "only_dims",
    "whole_layout",
    "without",
]

Layout = tuple[int | None, ...]


def layout_on(shape: Sequence[int], num_dims: int) -> Layout:
    """Return the layout of a tensor that lies on a partition of some shape, dim by dim.

    A tensor with fewer dims lies on the first axes; one with more dims is not split along the last
    ones.
    """
    lengths = [*shape[:num_dims], *[1] * (num_dims - len(shape))]
    return tuple(axis if length > 1 else None for axis, length in enumerate(lengths))


def whole_layout(result: Any) -> Any:
    """Return the layout of tensors that every worker has whole, nested as the result is."""
    return map_leaves(
        result, lambda each: (None,) * each.dim() if isinstance(each, torch.Tensor) else None
    )


def axes_of(layout: Layout) -> frozenset[int]:
    """Return the axes that split a tensor."""
    return frozenset(axis for axis in layout if axis is not None)


def without(layout: Layout, dims: Iterable[int]) -> Layout:
    """Return a layout in which some dims are whole."""
    whole = set(dims)
    return tuple(None if dim in whole else axis for dim, axis in enumerate(layout))


def only_dims(layout: Layout, dims: Collection[int]) -> Layout:
    """Return a layout in which all dims but some are whole."""
    return tuple(axis if dim in dims else None for dim, axis in enumerate(layout))


def block_shape(layout: Layout, sizes: Sequence[int], P: Partition) -> tuple[int, ...]:
    """Return the shape of this worker's balanced block of a tensor.

    Args:
        layout: of the tensor on the partition.
        sizes: global shape of the tensor.
        P: the partition, which this worker is in.
    """
    if P.index is None:
        raise AssertionError("only workers of the partition hold blocks")
    return tuple(
        size if axis is None else balanced_intervals(size, P.shape[axis])[P.index[axis]].size
        for axis, size in zip(layout, sizes, strict=True)
    )


class Subgrids:
    """The subgrids into which layouts divide a partition; asking for one is collective over it."""

    def __init__(self, P: Partition) -> None:
        self.P = P

    def partition(self, layout: Layout) -> Partition:
        """Return this worker's subgrid, with one axis for each dim; inactive on other ranks."""
        P = self.P
        shape = [1 if axis is None else P.shape[axis] for axis in layout]
        if not P.active:
            return Partition(P.root, None, P.ranks[: math.prod(shape)], shape)
        subgrids: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        for index, rank in zip(P.indices(), P.ranks, strict=True):
            replica = tuple(place for axis, place in enumerate(index) if axis not in layout)
            place = tuple(0 if axis is None else index[axis] for axis in layout)
            subgrids.setdefault(replica, []).append((place, rank))
        # Sorted along the dims, not along the axes: a layout may name axes in any order.
        groups = P.group.make([[rank for _, rank in sorted(each)] for each in subgrids.values()])
        (mine,) = (group for group in groups if group is not None)
        return Partition(P.root, mine, mine.ranks, shape)

    def group(self, axes: Iterable[int]) -> Group:
        """Return the workers that differ from this one only along some axes."""
        return self.P.axis_group(sorted(axes))
