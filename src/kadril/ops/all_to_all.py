"""All-to-all: each worker of a line splits its block, and gets a part of every other one's.

    an axis of 2 workers, split_dim 1, concat_dim 0

    | a b |    | e f |             | a |    | b |         y_k = (x_0[:, part k],  x_1[:, part k])
    | c d |    | g h |     -->     | c |    | d |
                                   | e |    | f |         x*_r = (y*_0[part r],   y*_1[part r])
                                   | g |    | h |

So what was cut along `concat_dim` is cut along `split_dim` afterwards. Its adjoint is the way back:
split along `concat_dim`, put together along `split_dim`. Parts may have different sizes.

Moved: a rank of a line of p gives (p - 1) / p of its block, in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kadril.errors import MismatchError
from kadril.ops.all_gather import check_dim
from kadril.ops.calling import uncompiled
from kadril.ops.linear_operator import apply_operator
from kadril.ops.reduce_scatter import sizes_along
from kadril.ops.structure import Structure, agree_in_line
from kadril.ops.zero_volume import nothing_of
from kadril.partition import Group, Partition

__all__ = ["all_to_all"]


@uncompiled
def all_to_all(
    x: torch.Tensor,
    P_x: Partition,
    axis: int,
    split_dim: int,
    concat_dim: int,
    *,
    sizes: Sequence[int] | None = None,
    what: str = "AllToAll",
) -> torch.Tensor:
    """Split blocks along one dim, and put them together along another; collective over `P_x`.

    Args:
        x: of the same shape on all workers in line, but for `concat_dim`, where it may have any
            size; without elements on ranks that are not in the partition, which get a copy.
        P_x: the partition.
        axis: along which workers are in line.
        split_dim: of which worker k gets part k.
        concat_dim: along which parts are put together, in the order of the line.
        sizes: of the parts along `split_dim`, one for each worker in line; balanced where None.
        what: name of the operation in errors.

    Returns:
        Size `sizes[k]` along `split_dim`, and the sum of all workers' along `concat_dim`. Where the
        two are the same dim, the sum of all parts k.

    Raises:
        ValueError: there is no such axis or dim, the sizes do not make up the dim, or this rank has
            elements and is not in the partition.
        MismatchError: blocks do not make up a tensor; on every worker in line.
    """
    if not -P_x.dim <= axis < P_x.dim:
        raise ValueError(f"{what}: {P_x!r} has no axis {axis}")
    if not P_x.active:
        return nothing_of(x, P_x, what)
    group = P_x.axis_group([axis])
    structure = agree_in_line(group, x, what)
    split_dim, concat_dim = (check_dim(structure, dim, what) for dim in (split_dim, concat_dim))
    check_shapes(structure, group, concat_dim, what)
    num_workers = len(structure.shapes)
    parts = [
        sizes_along(shape[split_dim], num_workers, sizes, split_dim, what)
        for shape in structure.shapes
    ]
    mine = group.transport.rank
    comes = [
        (*shape[:split_dim], cut[mine], *shape[split_dim + 1 :])
        for shape, cut in zip(structure.shapes, parts, strict=True)
    ]
    operator = AllToAllOperator(
        group,
        Cut(split_dim, parts[mine]),
        Cut(concat_dim, tuple(shape[concat_dim] for shape in comes)),
        what,
    )
    return apply_operator(operator, x, requires_grad=structure.requires_grad)


def check_shapes(structure: Structure, group: Group, concat_dim: int, what: str) -> None:
    """Raise `MismatchError` where parts could not be put together."""
    rests = {(*shape[:concat_dim], *shape[concat_dim + 1 :]) for shape in structure.shapes}
    if len(rests) > 1:
        shapes = ", ".join(
            f"{list(shape)} on rank {rank}"
            for rank, shape in zip(group.ranks, structure.shapes, strict=True)
        )
        raise MismatchError(
            f"{what}: blocks must have the same shape but for dim {concat_dim}, along which their"
            f" parts are put together; got {shapes}"
        )


class Cut(NamedTuple):
    """A dim in parts, one for each worker in line."""

    dim: int
    sizes: tuple[int, ...]

    def split(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Split a tensor into the parts."""
        return list(torch.split_with_sizes(x, list(self.sizes), self.dim))


class AllToAllOperator(NamedTuple):
    """An all-to-all among the workers of a line; the adjoint is its way back.

    Attributes:
        group: the line of workers.
        given: how this one's block is split.
        taken: how what it gets is made up.
        what: name of the operation in errors.
    """

    group: Group
    given: Cut
    taken: Cut
    what: str

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y_k = (x_0[part k], x_1[part k], ...)."""
        return swapped(x, self.group, self.given, self.taken, what)

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor:
        """x*_r = (y*_0[part r], y*_1[part r], ...)."""
        return swapped(y, self.group, self.taken, self.given, what)


def swapped(x: torch.Tensor, group: Group, given: Cut, taken: Cut, what: str) -> torch.Tensor:
    """Give parts, and put those that are taken together, in new memory."""
    if len(given.sizes) == 1:
        return x.clone(memory_format=torch.contiguous_format)
    parts = given.split(x)
    shapes = part_shapes(x, group.transport.rank, given, taken)
    counts = [shape.numel() for shape in shapes]
    flat = torch.cat([part.reshape(-1) for part in parts])
    came = x.new_empty(sum(counts))
    group.transport.alltoallv(flat, [part.numel() for part in parts], came, counts, name=what)
    pieces = torch.split_with_sizes(came, counts)
    return torch.cat(
        [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)], taken.dim
    )


def part_shapes(x: torch.Tensor, mine: int, given: Cut, taken: Cut) -> list[torch.Size]:
    """Return the shapes of the parts that come: its own part's, but for one dim."""
    shapes = []
    for size in taken.sizes:
        shape = list(x.shape)
        shape[given.dim] = given.sizes[mine]
        shape[taken.dim] = size
        shapes.append(torch.Size(shape))
    return shapes
