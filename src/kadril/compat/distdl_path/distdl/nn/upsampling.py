"""Upsampling of a tensor that is split in feature space."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.ops import HaloExchanger
from kadril.ops.structure import agree
from kadril.partition import Interval, Partition, balanced_intervals

from ..backends.mpi.buffer import checked_manager
from ..backends.mpi.partition import MPICartesianPartition
from .interpolate import Grid, check_mode, scale_of
from .module import Module

__all__ = ["DistributedUpsample"]

FIRST_FEATURE = 2


class DistributedUpsample(Module):
    """Upsampling; the output is partitioned like the input, and balanced.

    Args:
        P_x: of input and output; one axis for each dim.
        buffer_manager: not needed here.
        size: of the global output, batch and channels included.
        scale_factor: of the feature dims, instead.
        mode: "nearest" or "linear", in any number of dims.
        align_corners: as torch's, for "linear".

    Raises:
        ValueError: not exactly one of `size` and `scale_factor`.
        NotImplementedError: another mode.
    """

    def __init__(
        self,
        P_x: MPICartesianPartition,
        buffer_manager: object = None,
        size: Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "linear",
        align_corners: bool = False,
    ) -> None:
        super().__init__()
        check_mode(mode)
        if (size is None) == (scale_factor is None):
            raise ValueError("DistributedUpsample: give either size or scale_factor")
        self.P_x = P_x
        self.buffer_manager = checked_manager(buffer_manager)
        self.size = None if size is None else [int(length) for length in size]
        self.scale_factor, self.mode, self.align_corners = scale_factor, mode, align_corners
        self._core = P_x._core

    def _grids(self, sizes: Sequence[int]) -> list[Grid]:
        """Inputs and outputs along each feature dim.

        Raises:
            ValueError: `size` is not that of the whole output.
        """
        if self.size is not None and len(self.size) != len(sizes):
            raise ValueError(
                f"DistributedUpsample: size {self.size} is not that of a tensor of {len(sizes)}"
                " dims; it has batch and channels too"
            )
        grids = []
        for dim, size in enumerate(sizes[FIRST_FEATURE:], FIRST_FEATURE):
            factor = scale_of(self.scale_factor, dim - FIRST_FEATURE)
            out_size = int(size * factor) if factor is not None else (self.size or sizes)[dim]
            grids.append(Grid(size, out_size, factor, self.mode, self.align_corners))
        return grids

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The block of the upsampled tensor."""
        core = self._core
        if core is None or not core.active or core.index is None:
            return input.clone()
        structure = agree(core, input, "DistributedUpsample")
        sizes = [blocks[-1].stop for blocks in structure.blocks("DistributedUpsample")]
        grids = self._grids(sizes)
        targets = [self._targets(core, dim, grid) for dim, grid in enumerate(grids, FIRST_FEATURE)]
        sources = [
            [grid.needed(outputs) for outputs in blocks]
            for grid, blocks in zip(grids, targets, strict=True)
        ]
        needs = [lambda _, needed=needed: needed for needed in sources]
        exchange = HaloExchanger(core, [None, None, *needs], what="DistributedUpsample")
        y = exchange.exchange(input, structure)
        for number, grid in enumerate(grids):
            dim = number + FIRST_FEATURE
            place = core.index[dim]
            y = grid.interpolate(y, dim, sources[number][place].start, targets[number][place])
        return y

    @staticmethod
    def _targets(core: Partition, dim: int, grid: Grid) -> list[Interval]:
        length = core.shape[dim]
        if grid.out_size < length:
            raise ValueError(
                f"DistributedUpsample: dim {dim} of the output has {grid.out_size} elements, too"
                f" few for {length} workers along axis {dim}"
            )
        return balanced_intervals(grid.out_size, length)
