"""Base of all norms: where they lie, what workers agree on, parameters for a worker's block.

    forward     agree on the structure  -->  plan (once for each structure)  -->  normalize

Every worker holds all parameters and uses those for its block; their gradients are summed over all
workers (`nn/sharing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril.nn.norm.standardize import Rows, Statistics, standardize, statistics_of
from kadril.nn.sharing import interval_here, refuse_data, spread_together
from kadril.ops.calling import uncompiled
from kadril.ops.structure import PlanCache, Structure, agree
from kadril.partition import Interval, Partition
from kadril.partition.pairing import text

__all__ = ["ChannelNorm", "LastDimsNorm", "PartitionedNorm"]

Index = slice | tuple[slice, ...]


class PartitionedNorm(torch.nn.Module):
    """Base of the norms, before the torch layer.

    Attributes:
        P_x: where inputs lie: one axis for each dim.
        what: name of the layer in errors.
    """

    P_x: Partition
    what: str

    def _lie_on(self, P_x: Partition, what: str | None, shown: str) -> None:
        """Note where inputs lie, and a name for errors.

        Args:
            P_x: see the class.
            what: the name that was given; None for the class and its settings.
            shown: the settings.
        """
        self.P_x = P_x
        self.what = what or f"{type(self).__name__}({shown})"
        self._plans = PlanCache()
        self._check_partition()

    @uncompiled
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Normalize this worker's block; collective over the partition. See the class."""
        if not self.P_x.active:
            refuse_data(input, self.what)
            return input.clone()
        structure = agree(self.P_x, input, self.what)
        plan = self._plans.get(structure, lambda: self._plan(structure))
        return self._normalize(input, plan, structure)

    def extra_repr(self) -> str:
        """Show the settings, as torch does, and where the layer lies."""
        return f"{super().extra_repr()}, P_x={text(self.P_x.shape)}"

    # ---- for subclasses -------------------------------------------------------------------------

    def _check_partition(self) -> None:
        """Raise `ValueError` where the partition does not match the layer."""
        raise NotImplementedError

    def _plan(self, structure: Structure) -> Any:
        """Return what follows from the structure of the input; raises where that does not match."""
        raise NotImplementedError

    def _normalize(self, x: torch.Tensor, plan: Any, structure: Structure) -> torch.Tensor:
        """Normalize a block."""
        raise NotImplementedError

    def _blocks_of_floats(self, structure: Structure) -> list[list[Interval]]:
        """Return the blocks of an input, for each dim.

        Raises:
            TypeError: it is not of a floating-point dtype.
        """
        blocks = structure.blocks(self.what)
        if not structure.dtype.is_floating_point:
            raise TypeError(f"{self.what}: cannot normalize a tensor of {structure.dtype}")
        return blocks

    def _share(
        self, tensors: Sequence[torch.Tensor | None], here: Index
    ) -> list[torch.Tensor | None]:
        """Return the part of some parameters that this worker uses, for all workers to use."""
        used = spread_together(tensors, self.P_x.group, what=f"{self.what} parameters")
        return [None if each is None else each[here] for each in used]

    def _standardize(
        self,
        matrix: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        rows: Rows,
        *,
        eps: float,
        requires_grad: bool,
        statistics: Statistics | None = None,
    ) -> torch.Tensor:
        """Standardize rows that share statistics with those of other workers; collective."""
        found = statistics_of(matrix, rows, self.what) if statistics is None else statistics
        return standardize(
            matrix,
            weight,
            bias,
            found,
            rows,
            eps=eps,
            requires_grad=requires_grad,
            what=self.what,
        )


class ChannelNorm(PartitionedNorm):
    """Base of the norms of (N, C, ...), with one weight for each channel."""

    def _check_partition(self) -> None:
        if self.P_x.dim < 2:
            raise ValueError(
                f"{self.what}: P_x has shape {text(self.P_x.shape)}; it needs axes for batch and"
                " channels at least"
            )

    def _check_channels(self, channels: Sequence[Interval], num_channels: int) -> None:
        """Refuse an input with another number of channels.

        Raises:
            ValueError: it has.
        """
        if channels[-1].stop != num_channels:
            raise ValueError(
                f"{self.what}: the input has {channels[-1].stop} channels in dim 1, along axis 1"
                f" of {text(self.P_x.shape)}; the layer has {num_channels}"
            )


class LastDimsNorm(PartitionedNorm):
    """Base of the norms over the last dims of (..., *normalized_shape)."""

    normalized_shape: tuple[int, ...]

    def _check_partition(self) -> None:
        if self.P_x.dim < len(self.normalized_shape):
            raise ValueError(
                f"{self.what}: P_x has shape {text(self.P_x.shape)}; it needs an axis for each"
                " dim of the input"
            )

    @property
    def num_lead(self) -> int:
        """Number of dims before those that are normalized."""
        return self.P_x.dim - len(self.normalized_shape)

    def _last_dims_here(self, blocks: Sequence[Sequence[Interval]]) -> tuple[slice, ...]:
        """Return the part of the parameters that this worker uses.

        Raises:
            ValueError: the last dims of the input are not `normalized_shape`.
        """
        for dim, size in enumerate(self.normalized_shape, start=self.num_lead):
            if blocks[dim][-1].stop != size:
                raise ValueError(
                    f"{self.what}: the input has {blocks[dim][-1].stop} elements in dim {dim},"
                    f" along axis {dim} of {text(self.P_x.shape)}; the layer has {size}"
                )
        axes = range(self.num_lead, self.P_x.dim)
        return tuple(slice(*interval_here(self.P_x, blocks, axis)) for axis in axes)
