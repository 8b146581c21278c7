"""The bins of an adaptive pooling along one dim: which inputs an output is made of.

    7 inputs, 3 outputs         0 1 2 3 4 5 6
                               [- - -]
                                   [- - -]            from floor(o 7/3) to ceil((o+1) 7/3)
                                       [- - -]

All of it is arithmetic on the global tensor; every rank does it for all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kadril.partition import Interval

__all__ = ["Bins", "LocalBins"]


class Bins(NamedTuple):
    """The bins along one dim of the global tensor.

    Attributes:
        num: number of bins; that of the inputs where None.
    """

    num: int | None

    def output_size(self, size: int) -> int:
        """Return the number of bins."""
        return size if self.num is None else self.num

    def bin(self, output: int, size: int) -> Interval:
        """Return what one output is made of."""
        num = self.output_size(size)
        return Interval(output * size // num, -(-(output + 1) * size // num))

    def inputs_of(self, outputs: Interval, size: int) -> Interval:
        """Return what some outputs are made of."""
        first, last = self.bin(outputs.start, size), self.bin(outputs.stop - 1, size)
        return Interval(first.start, last.stop)


class LocalBins:
    """The bins of one worker along one dim, in its box.

    Args:
        bins: of the global tensor.
        box: what the worker has of it; bins of which it has a part are cut to that.

    Attributes:
        sizes: of the bins, in the box.
        width: of the widest.
        indices: for each bin, `width` positions in the box, its last one again and again where it
            has fewer; None where bins lie one after the other and have the same size.
    """

    def __init__(self, bins: Sequence[Interval], box: Interval) -> None:
        inside = [(each & box).shifted(-box.start) for each in bins]
        self.sizes = [each.size for each in inside]
        self.width = max(self.sizes)
        tiles = [Interval(i * self.width, (i + 1) * self.width) for i in range(len(inside))]
        self.indices = None
        if inside != tiles:
            self.indices = torch.tensor(
                [
                    min(each.start + step, each.stop - 1)
                    for each in inside
                    for step in range(self.width)
                ]
            )

    def apart(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Make two dims of one: bins, and inputs in a bin. A view where bins do not overlap."""
        if self.indices is not None:
            x = x.index_select(dim, self.indices.to(x.device))
        shape = (*x.shape[:dim], len(self.sizes), self.width, *x.shape[dim + 1 :])
        return x.reshape(shape)

    def starts(self) -> torch.Tensor:
        """Return the first position of each bin in the box."""
        if self.indices is not None:
            return self.indices[:: self.width]
        return torch.arange(len(self.sizes)) * self.width

    def is_filled(self) -> torch.Tensor | None:
        """Return which of the `width` positions of each bin are its own; None where all are."""
        if min(self.sizes) == self.width:
            return None
        steps = torch.arange(self.width)
        return steps < torch.tensor(self.sizes).unsqueeze(1)
