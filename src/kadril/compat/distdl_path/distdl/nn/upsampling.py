"""Upsampling of a tensor that is split in feature space."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril import nn
from kadril.partition import Partition

from ..backends.mpi.buffer import checked_manager
from ..backends.mpi.partition import MPICartesianPartition
from .adapter import call_where_active, partition_beneath
from .interpolate import check_mode, scale_factors
from .module import Module

__all__ = ["DistributedUpsample"]

# By the number of feature dims.
LINEAR_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


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
        ValueError: not exactly one of `size` and `scale_factor`, or a `size` of other dims.
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
        beneath = partition_beneath(P_x)
        self._upsample = None if beneath is None else self._make_upsample(beneath)

    def _make_upsample(self, P_x: Partition) -> nn.DistributedUpsample:
        """Return the layer of `kadril.nn`.

        Raises:
            ValueError: `size` is not that of the whole output.
        """
        if self.size is not None and len(self.size) != P_x.dim:
            raise ValueError(
                f"DistributedUpsample: size {self.size} is not that of a tensor of {P_x.dim} dims;"
                " it has batch and channels too"
            )
        is_linear = self.mode == "linear"
        return nn.DistributedUpsample(
            P_x,
            None if self.size is None else self.size[2:],
            scale_factors(self.scale_factor, P_x.dim - 2),
            LINEAR_MODES.get(P_x.dim - 2, self.mode) if is_linear else self.mode,
            self.align_corners if is_linear else None,
            what="DistributedUpsample",
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the block of the upsampled tensor."""
        return call_where_active(self._upsample, input)
