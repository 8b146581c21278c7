"""Base of the adaptive poolings: outputs of a given size, split or on every worker.

    axis of 2 workers          output size 4        | y_0 y_1 | y_2 y_3 |       a block for each
                               output size 1        |   y_0   |   y_0   |       the whole for each
                               output size 3 of 4 workers                       refused

An output of size 1 cannot be split, and is what the pooling at the end of a network gives: every
worker along the axis gets it, computed from all of their blocks. It is then a *replicated* tensor,
one vector that many workers hold, and counts once (`kadril.ops.replicated`):

    y = sum_r (part of worker r)         x*_r = adjoint of its part, of y* as it is, not summed

That is right where all workers continue alike: the same layers with the same parameters, the
same loss, `backward()` on each of them. Each then has the whole gradient of the one loss, y*, and
so have the parameters after the pooling, of which every worker has a copy: they need no sum over
these axes. Summing (`ops.all_sum_reduce`) would count the loss once for every worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from typing_extensions import Self

from kadril.nn.box_layer import BoxLayer
from kadril.nn.pool.adaptive_bins import Bins, LocalBins
from kadril.ops.box_plan import BoxPlan, WorkerBoxes
from kadril.partition import Group, Partition
from kadril.partition.pairing import text

__all__ = ["AdaptivePoolLayer", "OutputSize"]

OutputSize = int | None | Sequence[int | None]


class AdaptivePoolLayer(BoxLayer):
    """Base of the adaptive poolings.

    Attributes:
        output_size: for each spatial dim; None for that of the input.
    """

    def __init__(self, P_x: Partition, output_size: OutputSize, *, what: str | None) -> None:
        name = what or type(self).__name__
        given = [output_size] if isinstance(output_size, int | None) else list(output_size)
        sizes = given * self.num_spatial if len(given) == 1 else given
        if len(sizes) != self.num_spatial or any(size is not None and size < 1 for size in sizes):
            raise ValueError(
                f"{name}: output_size must be a positive number, or {self.num_spatial} of them, or"
                f" None for the size of the input; got {output_size}"
            )
        shown = " x ".join("same" if size is None else str(size) for size in sizes)
        super().__init__(P_x, what or f"{name}(output {shown})")
        self.output_size = tuple(sizes)

    @classmethod
    def of(cls, layer: torch.nn.Module, P_x: Partition, *, what: str | None = None) -> Self:
        """Make the twin of a torch layer.

        Raises:
            TypeError: it is of another kind.
        """
        return cls(P_x, cls.check_kind(layer).output_size, what=what)

    def reaches(self, sizes: Sequence[int], dtype: torch.dtype) -> Sequence[Bins]:
        """Return the bins of each spatial dim."""
        return [Bins(size) for size in self.output_size]

    def replicates(self, dim: int, output_size: int) -> bool:
        """Whether an output is whole on all workers: one of size 1 cannot be split."""
        return dim >= self.first_spatial and output_size == 1

    def sharing_group(self, plan: BoxPlan) -> Group | None:
        """Return the workers that share an output with this one; None where nobody does.

        Collective over the partition where some do.
        """
        axes = [
            axis
            for axis in range(self.P_x.dim)
            if self.P_x.shape[axis] > 1 and self.replicates(axis, plan.output_sizes[axis])
        ]
        return self.P_x.axis_group(axes) if axes else None

    def local_bins(self, mine: WorkerBoxes) -> list[LocalBins]:
        """Return the bins of this worker, for each spatial dim."""
        first = self.first_spatial
        found = []
        for dim, num in enumerate(self.output_size, first):
            size, outputs = mine.plan.sizes[dim], mine.output[dim]
            bins = [Bins(num).bin(each, size) for each in range(outputs.start, outputs.stop)]
            found.append(LocalBins(bins, mine.box[dim]))
        return found

    def extra_repr(self) -> str:
        """Return the settings, and where the layer is."""
        return f"P_x={text(self.P_x.shape)}, output_size={self.output_size}"
