"""The input of a layer whose outputs are made of windows of it: a halo exchange gives all of it.

Outputs t .. t + m - 1 of a worker are made of the inputs

    stride * t - padding   ...   stride * (t + m - 1) + dilation * (kernel - 1) - padding

of the global tensor; what lies beyond its edges is padding, and is filled in. The layer itself then
needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kadril.ops import HaloExchanger
from kadril.ops.halo import Needed
from kadril.partition import Interval, Partition, balanced_intervals

__all__ = ["Window", "as_tuple", "window_exchanger"]


def as_tuple(value: int | Sequence[int], num_dims: int, name: str) -> tuple[int, ...]:
    """A value for each dim, given as one for all or as a sequence.

    Raises:
        ValueError: a sequence of another length.
    """
    given: int | list[int] = torch.as_tensor(value).tolist()
    values = tuple(given) if isinstance(given, list) else (int(given),) * num_dims
    if len(values) != num_dims:
        raise ValueError(f"{name} needs {num_dims} values, got {values}")
    return values


class Window(NamedTuple):
    """The window along one dim."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    def output_size(self, size: int) -> int:
        """Outputs for so many inputs."""
        reach = self.dilation * (self.kernel - 1) + 1
        return max(0, (size + 2 * self.padding - reach) // self.stride + 1)

    def needed(self, outputs: Interval) -> Interval:
        """The inputs that outputs are made of."""
        first = self.stride * outputs.start - self.padding
        last = self.stride * (outputs.stop - 1) + self.dilation * (self.kernel - 1) - self.padding
        return Interval(first, last + 1)

    def need(self, dim: int, what: str) -> Needed:
        """From blocks along a dim to what the workers need of it."""

        def find(blocks: Sequence[Interval]) -> list[Interval]:
            size = self.output_size(blocks[-1].stop)
            if size < len(blocks):
                raise ValueError(
                    f"{what}: dim {dim} has {blocks[-1].stop} elements, which give {size} outputs"
                    f" for {self!r}: too few for {len(blocks)} workers along axis {dim}"
                )
            return [self.needed(outputs) for outputs in balanced_intervals(size, len(blocks))]

        return find


def window_exchanger(
    P_x: Partition,
    windows: Sequence[Window],
    what: str,
    *,
    fill: float = 0.0,
    is_periodic: bool = False,
) -> HaloExchanger:
    """The exchange that gives each worker the inputs of its outputs; windows are for the last dims.

    Raises:
        ValueError: the partition has not two axes more than there are windows.
    """
    num_others = P_x.dim - len(windows)
    if num_others != 2:
        raise ValueError(
            f"{what}: the partition needs an axis for the batch, one for the channels and"
            f" {len(windows)} more, and has {P_x.dim}"
        )
    needs = [window.need(num_others + dim, what) for dim, window in enumerate(windows)]
    periodic = [False] * num_others + [is_periodic] * len(windows)
    return HaloExchanger(P_x, [None, None, *needs], periodic=periodic, fill=fill, what=what)


CONVOLUTIONS = {
    1: torch.nn.functional.conv1d,
    2: torch.nn.functional.conv2d,
    3: torch.nn.functional.conv3d,
}
