"""Interpolating the box of one worker: with the weights of the global tensor.

    box      [ 3 4 5 6 7 ]                positions in the box are those in the tensor, minus 3
    outputs      [ 9 .. 14 ]              places of outputs are those in the tensor

Two ways. Along any dim, gathered inputs are weighted and added up. Where there are 2, 4, ...
outputs per input, all positions are exact numbers, so they are the same in a box as in the tensor,
only shifted: torch's own function does all dims at once, and outputs next to the edges of the box
are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from kadril.nn.interpolation.taps import AlongDim
from kadril.partition import Interval

__all__ = ["Part", "Weighted", "along_each_dim", "part_of", "weighted"]


class Weighted(NamedTuple):
    """The taps of one worker along one dim, in its box.

    Attributes:
        indices: for each tap, one position for each output.
        weights: the same; None where there is one tap, with weight 1.
    """

    indices: list[torch.Tensor]
    weights: list[torch.Tensor] | None


class Part(NamedTuple):
    """Interpolating a box as if it were the whole: possible where positions are exact.

    Attributes:
        factors: outputs per input for each spatial dim, powers of two.
        kept: which of the outputs are the worker's, for each spatial dim.
    """

    factors: list[float]
    kept: list[slice]

    def interpolate(self, box: torch.Tensor, mode: str, align: bool | None) -> torch.Tensor:
        """Compute the worker's outputs."""
        y = functional.interpolate(box, scale_factor=self.factors, mode=mode, align_corners=align)
        dims = range(y.dim() - len(self.kept), y.dim())
        for dim, kept in zip(dims, self.kept, strict=True):
            y = y.narrow(dim, kept.start, kept.stop - kept.start)
        return y.contiguous()


def part_of(factors: Sequence[int], boxes: Sequence[Interval], results: Sequence[Interval]) -> Part:
    """Find which of the outputs of its box are the worker's."""
    kept = []
    for factor, box, result in zip(factors, boxes, results, strict=True):
        start = result.start - factor * box.start
        kept.append(slice(start, start + result.size))
    return Part([float(factor) for factor in factors], kept)


def weighted(along: AlongDim, size: int, box: Interval, result: Interval) -> Weighted | None:
    """Return one worker's taps along one dim, in its box; None where outputs are inputs."""
    taps = along.taps(result, size)
    indices = torch.from_numpy(taps.indices - box.start)
    if taps.weights is not None:
        return Weighted(list(indices), list(torch.from_numpy(taps.weights)))
    is_same = torch.equal(indices[0], torch.arange(box.size))
    return None if is_same else Weighted(list(indices), None)


def along_each_dim(box: torch.Tensor, taps: Sequence[Weighted | None], first: int) -> torch.Tensor:
    """Interpolate a box, along its last dim first."""
    has_weights = any(each is not None and each.weights is not None for each in taps)
    # In the type that torch adds in, so that it is rounded once.
    is_small = has_weights and box.dtype in (torch.float16, torch.bfloat16)
    y = box.float() if is_small else box
    for dim, along in reversed(list(enumerate(taps, first))):
        if along is None:
            continue
        parts = [y.index_select(dim, each.to(y.device)) for each in along.indices]
        y = parts[0]
        if along.weights is not None:
            shape = [-1, *[1] * (y.dim() - dim - 1)]
            weights = [each.to(y.device, y.dtype).view(shape) for each in along.weights]
            y = y * weights[0]
            for part, weight in zip(parts[1:], weights[1:], strict=True):
                y = torch.addcmul(y, part, weight)
    return y.to(box.dtype)
