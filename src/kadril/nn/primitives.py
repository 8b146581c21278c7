"""The primitives of `kadril.ops` as modules, which move their input and have no parameters.

Every rank makes the same modules in the same order, and calls them; a rank that holds nothing
passes a zero-volume tensor. Each class gives its operator and the adjoint, which is the backward
pass, as equations: x_r is the input of worker r, y_r its output, and x*, y* are gradients. What is
raised is said by the function of the same name in `kadril.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, TypeAlias

import torch

from kadril import ops
from kadril.ops.all_gather import as_axes
from kadril.ops.all_sum_reduce import axes_to_reduce, sum_over
from kadril.ops.halo import widen
from kadril.partition import Group, Partition
from kadril.partition.pairing import text

__all__ = [
    "AllGather",
    "AllMaxReduce",
    "AllMinReduce",
    "AllSumReduce",
    "AllToAll",
    "Broadcast",
    "Gather",
    "HaloExchange",
    "ReduceScatter",
    "Repartition",
    "Scatter",
    "SumReduce",
    "ZeroVolumeCorrector",
]

Move: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class Primitive(torch.nn.Module):
    """Base of the primitives; `repr` shows their partitions.

    Attributes:
        operator: what moves the input.
    """

    operator: Move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the operator to this worker's tensor; collective. See the class."""
        return self.operator(x)

    def extra_repr(self) -> str:
        """Show the partitions."""
        return ", ".join(
            f"{name}={text(value.shape)}"
            for name, value in vars(self).items()
            if isinstance(value, Partition)
        )


class BetweenPartitions(Primitive):
    """Base of the primitives between a smaller and a larger partition."""

    mover: ClassVar[type[ops.Broadcaster | ops.SumReducer]]

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
    ) -> None:
        super().__init__()
        self.P_x, self.P_y = P_x, P_y
        self.operator = self.mover(P_x, P_y, transpose_src, transpose_dest, preserve_batch)


class Broadcast(BetweenPartitions):
    """Copies blocks from a partition to a larger one; see `ops.broadcast`.

        y_s = x_r  for all s that r stands for          x*_r = sum of y*_s over these s

    Args:
        P_x: where blocks are.
        P_y: where they go. Axes are matched from the right: those of `P_x` have the same length, or
            length 1.
        transpose_src: whether the axes of `P_x` are taken in reverse order.
        transpose_dest: the same, for `P_y`.
        preserve_batch: whether a rank that gets nothing gets a zero-volume tensor with the batch
            size of its input, or with none.
    """

    mover = ops.Broadcaster


class SumReduce(BetweenPartitions):
    """Sums blocks of a partition on a smaller one; see `ops.sum_reduce`.

        y_r = sum of x_s over all s that r stands for          x*_s = y*_r

    Args:
        P_x: where blocks are.
        P_y: where sums go. Axes are matched from the right: those of `P_y` have the same length, or
            length 1.
        transpose_src: whether the axes of `P_x` are taken in reverse order.
        transpose_dest: the same, for `P_y`.
        preserve_batch: see `Broadcast`.
    """

    mover = ops.SumReducer


class OverAxes(Primitive):
    """Base of the reductions over axes of one partition.

    Args:
        P_x: the partition.
        axes_reduce: axes of the partition to reduce over.
        axes_keep: all other axes of the partition, instead.

    Raises:
        ValueError: not exactly one of the two was given, or there is no such axis.
    """

    def __init__(
        self,
        P_x: Partition,
        axes_reduce: Sequence[int] | None = None,
        axes_keep: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.P_x = P_x
        self.axes_reduce = axes_to_reduce(P_x, axes_reduce, axes_keep)

    def extra_repr(self) -> str:
        """Show the partition and the axes."""
        return f"{super().extra_repr()}, axes_reduce={self.axes_reduce}"


class AllSumReduce(OverAxes):
    """The sum over axes of a partition, on each worker; see `ops.all_sum_reduce`.

        y_r = sum of x_s          x*_r = sum of y*_s          over all s that differ from r only
                                                              along these axes

    Args:
        P_x: the partition.
        axes_reduce: axes of the partition to sum over.
        axes_keep: all other axes of the partition, instead.

    Example:
        ```python
        P_x = P_world.create_cartesian_topology_partition([2, 2, 3])
        layer = AllSumReduce(P_x, (1, 2))  # each y is the sum of the x of 6 workers
        ```
    """

    def __init__(
        self,
        P_x: Partition,
        axes_reduce: Sequence[int] | None = None,
        axes_keep: Sequence[int] | None = None,
    ) -> None:
        super().__init__(P_x, axes_reduce, axes_keep)
        self._group: Group | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over the workers; collective. See the class."""
        if not self.P_x.active:
            return ops.all_sum_reduce(x, self.P_x, self.axes_reduce)
        if self._group is None:
            self._group = self.P_x.axis_group(self.axes_reduce)
        return sum_over(x, self._group, "AllSumReduce")


class AllMaxReduce(OverAxes):
    """The largest value over axes of a partition, on each worker; see `ops.all_max_reduce`.

    y_r = max of x_s over all s that differ from r only along these axes. Gradients go to the worker
    that has the largest value.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Find the largest value; collective. See the class."""
        return ops.all_max_reduce(x, self.P_x, self.axes_reduce)


class AllMinReduce(OverAxes):
    """The smallest value over axes of a partition, on each worker; see `ops.all_min_reduce`.

    y_r = min of x_s over all s that differ from r only along these axes. Gradients go to the worker
    that has the smallest value.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Find the smallest value; collective. See the class."""
        return ops.all_min_reduce(x, self.P_x, self.axes_reduce)


class AllGather(Primitive):
    """Blocks concatenated over axes of a partition, on each worker; see `ops.all_gather`.

        y_r = (x_0, x_1, ...)          x*_k = sum over r of block k of y*_r

    for workers that differ only along these axes.

    Args:
        P_x: the partition.
        axes_gather: axes of the partition to gather over.
        axes_keep: all other axes of the partition, instead.
        dim: along which blocks are concatenated; where None, along the dim with the number of each
            axis.
    """

    def __init__(
        self,
        P_x: Partition,
        axes_gather: Sequence[int] | int | None = None,
        axes_keep: Sequence[int] | None = None,
        *,
        dim: int | None = None,
    ) -> None:
        super().__init__()
        self.P_x, self.dim = P_x, dim
        self.axes_gather = axes_to_reduce(P_x, as_axes(axes_gather), axes_keep)
        self.operator = partial(ops.all_gather, P_x=P_x, axes_gather=self.axes_gather, dim=dim)


class ReduceScatter(Primitive):
    """The sum over axes of a partition, a block of it for each worker; see `ops.reduce_scatter`.

        y_k = block k of (sum over r of x_r)          x*_r = (y*_0, y*_1, ...)

    for workers that differ only along these axes.

    Args:
        P_x: the partition.
        axes_scatter: axes of the partition to sum over.
        axes_keep: all other axes of the partition, instead.
        dim: along which the sum is divided into blocks; where None, along the dim with the number
            of each axis.
        sizes: of the blocks; balanced where None.
    """

    def __init__(
        self,
        P_x: Partition,
        axes_scatter: Sequence[int] | int | None = None,
        axes_keep: Sequence[int] | None = None,
        *,
        dim: int | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.P_x, self.dim, self.sizes = P_x, dim, sizes
        axes = axes_to_reduce(P_x, as_axes(axes_scatter), axes_keep)
        self.axes_scatter = axes
        self.operator = partial(
            ops.reduce_scatter, P_x=P_x, axes_scatter=axes, dim=dim, sizes=sizes
        )


class Repartition(Primitive):
    """Turns the blocks on one partition into the blocks on another; see `ops.repartition`.

        y_s = x[block s of P_y]          x*_r = y*[block r of P_x]

    Args:
        P_x: where blocks are, of any sizes.
        P_y: where they go, balanced.
        preserve_batch: see `Broadcast`.
        sizes: for each dim, block sizes along its axis of `P_y`; balanced where None.
    """

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        preserve_batch: bool = True,
        *,
        sizes: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        super().__init__()
        self.P_x, self.P_y = P_x, P_y
        self.operator = ops.Repartitioner(P_x, P_y, sizes=sizes, preserve_batch=preserve_batch)


class HaloExchange(Primitive):
    """Gives each block its surroundings, out of place; see `ops.halo_exchange`.

        y_r = x[block r and its halo]          x*_r = sum of all y* at the places of block r

    Args:
        P_x: one axis for each dim.
        halo: for each dim, the number of elements before and after the block; negative ones make
            the block smaller.
        edges: what is beyond the ends of a dim, for each or for all: "zeros", "circular", "reflect"
            or "replicate".
        fill: the value of "zeros".
    """

    def __init__(
        self,
        P_x: Partition,
        halo: Sequence[tuple[int, int]],
        edges: Sequence[str] | str = "zeros",
        *,
        fill: float = 0.0,
    ) -> None:
        super().__init__()
        self.P_x = P_x
        self.halo = [(before, after) for before, after in halo]
        needs = [widen(before, after) for before, after in self.halo]
        self.operator = ops.HaloExchanger(P_x, needs, edges=edges, fill=fill)


class Scatter(Primitive):
    """Turns a tensor on one worker into blocks on all; see `ops.scatter`.

        y_r = x[block r],  x on the root          x* = (y*_0, y*_1, ...)  on the root

    Args:
        P_x: one axis for each dim.
        root: the worker that has the tensor.
        sizes: for each dim, block sizes along its axis; balanced where None.
    """

    def __init__(
        self,
        P_x: Partition,
        root: int = 0,
        *,
        sizes: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        super().__init__()
        self.P_x, self.root = P_x, root
        self.operator = ops.Scatterer(P_x, root, sizes=sizes)


class Gather(Primitive):
    """Turns blocks on all workers into a tensor on one; see `ops.gather`.

        y = (x_0, x_1, ...)  on the root          x*_r = y*[block r]

    Args:
        P_x: one axis for each dim.
        root: the worker that gets the tensor.
        preserve_batch: see `Broadcast`.
    """

    def __init__(self, P_x: Partition, root: int = 0, preserve_batch: bool = True) -> None:
        super().__init__()
        self.P_x, self.root = P_x, root
        self.operator = ops.Gatherer(P_x, root, preserve_batch=preserve_batch)


class AllToAll(Primitive):
    """Turns blocks along one dim into blocks along another; see `ops.all_to_all`.

        y_k = (x_0[part k], x_1[part k], ...)          x*_r = (y*_0[part r], y*_1[part r], ...)

    Args:
        P_x: the partition.
        axis: the axis along which workers exchange parts.
        split_dim: the dim of which worker k gets part k.
        concat_dim: the dim along which parts are concatenated.
        sizes: of the parts; balanced where None.
    """

    def __init__(
        self,
        P_x: Partition,
        axis: int,
        split_dim: int,
        concat_dim: int,
        *,
        sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.P_x, self.axis, self.sizes = P_x, axis, sizes
        self.split_dim, self.concat_dim = split_dim, concat_dim
        self.operator = partial(
            ops.all_to_all,
            P_x=P_x,
            axis=axis,
            split_dim=split_dim,
            concat_dim=concat_dim,
            sizes=sizes,
        )


class ZeroVolumeCorrector(Primitive):
    """Ends a network whose result only some ranks have; see `ops.correct_zero_volume`.

    y = x where it has elements, and the number 0 elsewhere, so that `backward()` may be called on
    every rank.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor, or 0. See the class."""
        return ops.correct_zero_volume(x)
