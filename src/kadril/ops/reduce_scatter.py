"""Reduce-scatter: the sum over lines of workers, cut into a block for each of them.

    P_x = 1 x 2, axis 1, dim 1

    | a b | c d |    -->    | a+c | b+d |       y_k = (sum_r x_r)[block k]        in line of k
                                                x*_r = (y*_0, y*_1, ...)

Its adjoint is all-gather. Blocks are balanced, or have the sizes that are asked for.

Moved: a rank of a line of p reads (p - 1) / p of every other one's part, in one step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.errors import MismatchError
from kadril.ops.all_gather import AllGatherOperator, as_axes, check_dim, dims_of
from kadril.ops.all_sum_reduce import axes_to_reduce
from kadril.ops.calling import uncompiled
from kadril.ops.linear_operator import Reverse, apply_operator
from kadril.ops.structure import agree_in_line
from kadril.ops.zero_volume import nothing_of
from kadril.partition import Group, Partition, balanced_sizes

__all__ = ["reduce_scatter", "sizes_along"]


@uncompiled
def reduce_scatter(
    x: torch.Tensor,
    P_x: Partition,
    axes_scatter: Sequence[int] | int | None = None,
    axes_keep: Sequence[int] | None = None,
    *,
    dim: int | None = None,
    sizes: Sequence[int] | None = None,
    what: str = "ReduceScatter",
) -> torch.Tensor:
    """Sum over axes of a partition; each worker keeps a block of the sum. Collective over it.

    Args:
        x: of the same shape on all workers in line; without elements on ranks that are not in the
            partition, which get a copy.
        P_x: the partition.
        axes_scatter: axes of the partition to sum over.
        axes_keep: all other axes of the partition, instead.
        dim: along which the sum is cut, in the order of the partition; where None, along the dim of
            the same number as the axis, for one axis after the other.
        sizes: of the blocks, one for each worker in line; balanced where None. For one dim only.
        what: name of the operation in errors.

    Returns:
        For each axis and dim: the worker's block of the sum. A new tensor, also where there is
        nothing to sum.

    Raises:
        ValueError: not exactly one of the two was given, there is no such axis or dim, the sizes do
            not make up the dim, or this rank has elements and is not in the partition.
        MismatchError: shapes or dtypes differ; on every worker in line.
    """
    axes = axes_to_reduce(P_x, as_axes(axes_scatter), axes_keep)
    if not P_x.active:
        return nothing_of(x, P_x, what)
    lines = dims_of(axes, dim)
    if sizes is not None and len(lines) != 1:
        raise ValueError(f"{what}: sizes are for one axis or dim, and {len(lines)} are asked for")
    # The reverse of the order in which all_gather puts them together.
    for together, each in reversed(lines):
        x = scatter_over(x, P_x.axis_group(together), each, sizes, what)
    return x if lines else x.clone()


def scatter_over(
    x: torch.Tensor, group: Group, dim: int, sizes: Sequence[int] | None, what: str
) -> torch.Tensor:
    """Sum over a group, of which each rank keeps its block along a dim."""
    structure = agree_in_line(group, x, what)
    if len(set(structure.shapes)) > 1:
        shapes = ", ".join(
            f"{list(shape)} on rank {rank}"
            for rank, shape in zip(group.ranks, structure.shapes, strict=True)
        )
        raise MismatchError(f"{what}: workers in line have different shapes: {shapes}")
    dim = check_dim(structure, dim, what)
    cut = sizes_along(x.shape[dim], len(structure.shapes), sizes, dim, what)
    operator = Reverse(AllGatherOperator(group, dim, cut, what))
    return apply_operator(operator, x, requires_grad=structure.requires_grad)


def sizes_along(
    size: int, num_blocks: int, sizes: Sequence[int] | None, dim: int, what: str
) -> tuple[int, ...]:
    """Return the sizes of the blocks of a dim: balanced, or those asked for.

    Raises:
        ValueError: they do not make up the dim.
    """
    if sizes is None:
        return tuple(balanced_sizes(size, num_blocks))
    if len(sizes) != num_blocks or sum(sizes) != size or min(sizes) < 0:
        raise ValueError(
            f"{what}: sizes {list(sizes)} do not make up the {size} elements of dim {dim} over"
            f" {num_blocks} workers"
        )
    return tuple(sizes)
