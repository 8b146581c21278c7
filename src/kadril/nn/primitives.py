"""The primitives of `kadril.ops` as modules: what moves is the input, and there are no parameters.

Every rank makes the same modules in the same order, and calls them; a rank that holds nothing gives
a zero-volume tensor. What each of them does, in equations, and what it raises is said by the
function of the same name in `kadril.ops`.
"""

from __future__ import annotations

from collections.abc import Sequence

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


class Primitive(torch.nn.Module):
    """A movement of data, with nothing to learn; its partitions are told by `repr`."""

    def extra_repr(self) -> str:
        """Its partitions."""
        return ", ".join(
            f"{name}={text(value.shape)}"
            for name, value in vars(self).items()
            if isinstance(value, Partition)
        )


class Broadcast(Primitive):
    """Copies blocks from a partition to a larger one; see `ops.broadcast`.

    Args:
        P_x: where blocks are.
        P_y: where they go; from the right, its axes have the size of those of `P_x`, or that is 1.
        transpose_src: whether the axes of `P_x` are taken in reverse order.
        transpose_dest: the same, for `P_y`.
        preserve_batch: whether a rank that gets nothing gets a zero-volume tensor with the batch
            size of its input, or with none.
    """

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
        self._move = ops.Broadcaster(P_x, P_y, transpose_src, transpose_dest, preserve_batch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y_s = x_r for all s that r stands for."""
        return self._move(x)


class SumReduce(Primitive):
    """Adds up blocks of a partition on a smaller one; see `ops.sum_reduce`.

    Args:
        P_x: where blocks are.
        P_y: where sums go; from the right, its axes have the size of those of `P_x`, or 1.
        transpose_src: whether the axes of `P_x` are taken in reverse order.
        transpose_dest: the same, for `P_y`.
        preserve_batch: as of `Broadcast`.
    """

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
        self._move = ops.SumReducer(P_x, P_y, transpose_src, transpose_dest, preserve_batch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y_r = sum of x_s over all s that r stands for."""
        return self._move(x)


class OverAxes(Primitive):
    """What the reductions over axes of one partition have in common.

    Args:
        P_x: whose axes.
        axes_reduce: to reduce over.
        axes_keep: all others, instead.

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
        """Its partition and axes."""
        return f"{super().extra_repr()}, axes_reduce={self.axes_reduce}"


class AllSumReduce(OverAxes):
    """The sum over axes of a partition, on each worker; see `ops.all_sum_reduce`.

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
        """y_r = sum of x_s over the line of r."""
        if not self.P_x.active:
            return ops.all_sum_reduce(x, self.P_x, self.axes_reduce)
        if self._group is None:
            self._group = self.P_x.axis_group(self.axes_reduce)
        return sum_over(x, self._group, "AllSumReduce")


class AllMaxReduce(OverAxes):
    """The largest value over axes of a partition, on each worker; see `ops.all_max_reduce`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y_r = max of x_s over the line of r."""
        return ops.all_max_reduce(x, self.P_x, self.axes_reduce)


class AllMinReduce(OverAxes):
    """The smallest value over axes of a partition, on each worker; see `ops.all_min_reduce`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y_r = min of x_s over the line of r."""
        return ops.all_min_reduce(x, self.P_x, self.axes_reduce)


class AllGather(Primitive):
    """Blocks put together over axes of a partition, on each worker; see `ops.all_gather`.

    Args:
        P_x: whose axes.
        axes_gather: to gather over.
        axes_keep: all others, instead.
        dim: along which; where None, along the dim of the same number as each axis.
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y_r = (x_0, x_1, ...) of the line of r."""
        return ops.all_gather(x, self.P_x, self.axes_gather, dim=self.dim)


class ReduceScatter(Primitive):
    """The sum over axes of a partition, a block for each worker; see `ops.reduce_scatter`.

    Args:
        P_x: whose axes.
        axes_scatter: to sum over.
        axes_keep: all others, instead.
        dim: along which the sum is cut; where None, along the dim of the same number as each axis.
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
        self.axes_scatter = axes_to_reduce(P_x, as_axes(axes_scatter), axes_keep)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y_k = block k of the sum of x_r over the line of k."""
        return ops.reduce_scatter(x, self.P_x, self.axes_scatter, dim=self.dim, sizes=self.sizes)


class Repartition(Primitive):
    """The blocks on one partition become the blocks on another; see `ops.repartition`.

    Args:
        P_x: where blocks are, of any sizes.
        P_y: where they go, balanced.
        preserve_batch: as of `Broadcast`.
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
        self._move = ops.Repartitioner(P_x, P_y, sizes=sizes, preserve_batch=preserve_batch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y_r = x[block r of P_y]."""
        return self._move(x)


class HaloExchange(Primitive):
    """Gives each block its surroundings, out of place; see `ops.halo_exchange`.

    Args:
        P_x: one axis for each dim.
        halo: for each dim, elements before and after the block; negative ones cut it.
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
        self._move = ops.HaloExchanger(P_x, needs, edges=edges, fill=fill)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y_r = x[block r and its halo]."""
        return self._move(x)


class Scatter(Primitive):
    """A tensor on one worker becomes blocks on all; see `ops.scatter`.

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
        self._move = ops.Scatterer(P_x, root, sizes=sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y_r = x[block r]."""
        return self._move(x)


class Gather(Primitive):
    """Blocks on all workers become a tensor on one; see `ops.gather`.

    Args:
        P_x: one axis for each dim.
        root: the worker that gets the tensor.
        preserve_batch: as of `Broadcast`.
    """

    def __init__(self, P_x: Partition, root: int = 0, preserve_batch: bool = True) -> None:
        super().__init__()
        self.P_x, self.root = P_x, root
        self._move = ops.Gatherer(P_x, root, preserve_batch=preserve_batch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y = blocks x_r put together, on the root."""
        return self._move(x)


class AllToAll(Primitive):
    """Blocks along one dim become blocks along another; see `ops.all_to_all`.

    Args:
        P_x: the partition.
        axis: along which workers are in line.
        split_dim: of which worker k gets part k.
        concat_dim: along which parts are put together.
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y_k = (x_0[part k], x_1[part k], ...)."""
        return ops.all_to_all(
            x, self.P_x, self.axis, self.split_dim, self.concat_dim, sizes=self.sizes
        )


class ZeroVolumeCorrector(Primitive):
    """The end of a network whose result only some ranks have; see `ops.correct_zero_volume`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y = x, or the number 0 where there is nothing."""
        return ops.correct_zero_volume(x)
