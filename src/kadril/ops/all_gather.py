"""All-gather: the blocks of lines of workers, put together on each of them.

    P_x = 2 x 2, axis 1, dim 1

    | a | b |            | a b | a b |          y_r = (x_0, x_1, ...)             in line of r
    |---|---|    -->     |-----|-----|          x*_k = sum_r y*_r[block k]
    | c | d |            | c d | c d |

Its adjoint is reduce-scatter: each worker's `y` is a result of its own, so gradients add up. Blocks
may have different sizes along the dim.

Moved: a rank of a line of p gets (p - 1) / p of the result, in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kadril.errors import MismatchError
from kadril.ops.all_sum_reduce import axes_to_reduce
from kadril.ops.calling import uncompiled
from kadril.ops.linear_operator import apply_operator
from kadril.ops.structure import Structure, agree_in_line
from kadril.ops.zero_volume import nothing_of
from kadril.partition import Group, Partition

__all__ = ["AllGatherOperator", "all_gather", "as_axes", "check_dim", "dims_of"]


@uncompiled
def all_gather(
    x: torch.Tensor,
    P_x: Partition,
    axes_gather: Sequence[int] | int | None = None,
    axes_keep: Sequence[int] | None = None,
    *,
    dim: int | None = None,
    what: str = "AllGather",
) -> torch.Tensor:
    """Put blocks together over axes of a partition; collective over it.

    Args:
        x: of the same shape on all workers in line, but for the dim that is put together; without
            elements on ranks that are not in the partition, which get a copy.
        P_x: the partition.
        axes_gather: axes of the partition to gather over.
        axes_keep: all other axes of the partition, instead.
        dim: along which blocks are put together, in the order of the partition; where None, along
            the dim of the same number as the axis, for one axis after the other.
        what: name of the operation in errors.

    Returns:
        For each axis and dim: size `sum_k x_k.shape[dim]` over the line, on each worker. A new
        tensor, also where there is nothing to gather.

    Raises:
        ValueError: not exactly one of the two was given, there is no such axis or dim, or this rank
            has elements and is not in the partition.
        MismatchError: blocks do not make up a tensor; on every worker in line.
    """
    axes = axes_to_reduce(P_x, as_axes(axes_gather), axes_keep)
    if not P_x.active:
        return nothing_of(x, P_x, what)
    lines = dims_of(axes, dim)
    for together, each in lines:
        x = gather_over(x, P_x.axis_group(together), each, what)
    return x if lines else x.clone()


def as_axes(axes: Sequence[int] | int | None) -> Sequence[int] | None:
    """Return one axis as a list of axes."""
    return [axes] if isinstance(axes, int) else axes


def dims_of(axes: Sequence[int], dim: int | None) -> list[tuple[list[int], int]]:
    """The axes that are gathered over together, and the dim along which; innermost first."""
    if dim is not None:
        return [(list(axes), dim)] if axes else []
    return [([axis], axis) for axis in reversed(axes)]


def check_dim(structure: Structure, dim: int, what: str) -> int:
    """Return the dim, counted from the first one.

    Raises:
        ValueError: there is no such dim; on all workers, as they have agreed on their shapes.
    """
    num_dims = len(structure.shapes[0])
    if not -num_dims <= dim < num_dims:
        raise ValueError(f"{what}: a tensor of {num_dims} dims has no dim {dim}")
    return dim % num_dims


def gather_over(x: torch.Tensor, group: Group, dim: int, what: str) -> torch.Tensor:
    """Put the blocks of a group together along a dim, on each of its ranks."""
    structure = agree_in_line(group, x, what)
    dim = check_dim(structure, dim, what)
    rests = {(*shape[:dim], *shape[dim + 1 :]) for shape in structure.shapes}
    if len(rests) > 1:
        shapes = ", ".join(
            f"{list(shape)} on rank {rank}"
            for rank, shape in zip(group.ranks, structure.shapes, strict=True)
        )
        raise MismatchError(
            f"{what}: blocks must have the same shape but for dim {dim}, along which they are put"
            f" together; got {shapes}"
        )
    sizes = tuple(shape[dim] for shape in structure.shapes)
    operator = AllGatherOperator(group, dim, sizes, what)
    return apply_operator(operator, x, requires_grad=structure.requires_grad)


class AllGatherOperator(NamedTuple):
    """Blocks put together; the adjoint sums what all workers have for each block.

    Attributes:
        group: the line of workers.
        dim: the dim along which blocks are put together.
        sizes: sizes of their blocks along it.
        what: name of the operation in errors.
    """

    group: Group
    dim: int
    sizes: tuple[int, ...]
    what: str

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y_r = (x_0, x_1, ...)."""
        return gathered(x, self.group, self.dim, self.sizes, what)

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor:
        """x*_k = sum_r y*_r[block k]."""
        return summed_block(y, self.group, self.dim, self.sizes, what)


def gathered(
    x: torch.Tensor, group: Group, dim: int, sizes: Sequence[int], what: str
) -> torch.Tensor:
    """Put blocks of some sizes together along a dim, in new memory."""
    if len(sizes) == 1:
        return x.clone(memory_format=torch.contiguous_format)
    before, after = x.shape[:dim], x.shape[dim + 1 :]
    each = before.numel() * after.numel()
    counts = [size * each for size in sizes]
    flat = x.new_empty(sum(counts))
    group.transport.allgatherv(x.contiguous(), flat, counts, name=what)
    if before.numel() == 1:
        return flat.view(*before, sum(sizes), *after)
    parts = torch.split_with_sizes(flat, counts)
    return torch.cat(
        [part.view(*before, size, *after) for part, size in zip(parts, sizes, strict=True)], dim
    )


def summed_block(
    y: torch.Tensor, group: Group, dim: int, sizes: Sequence[int], what: str
) -> torch.Tensor:
    """Sum over a group, and give each rank its block along a dim, in new memory."""
    if len(sizes) == 1:
        return y.clone(memory_format=torch.contiguous_format)
    before, after = y.shape[:dim], y.shape[dim + 1 :]
    counts = [size * before.numel() * after.numel() for size in sizes]
    if before.numel() == 1:
        flat = y.contiguous()
    else:
        flat = torch.cat([part.reshape(-1) for part in torch.split_with_sizes(y, list(sizes), dim)])
    mine = group.transport.rank
    x = y.new_empty((*before, sizes[mine], *after))
    group.transport.reduce_scatterv(flat, x, counts, name=what)
    return x
