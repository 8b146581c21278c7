"""Locally connected layers: a convolution whose filters are not shared between positions.

    y[n, o, i, j] = b[i, j, o] + sum_{c, k, l}  w[i, j, o, c, k, l]  x[n, c, s i + k, s j + l]

    P_x = N x 1 x 2 x 2        a worker needs the filters of its own outputs only, and has no others

    +-----+-----+              x*  = gather*(w^T y*)           halos are added back
    |  0  |  1  |              w*  = y* x^T                    for the worker's own outputs;
    +-----+-----+                                              summed along the axis of the batch
    |  2  |  3  |
    +-----+-----+

`state_dict` has the filters of all positions on every rank, so that it can be loaded on any
partition.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Self

import torch
from torch.nn import functional

from kadril.nn.box_layer import per_dim
from kadril.nn.conv.conv_window import ConvWindow
from kadril.nn.pool.pool_layer import Size
from kadril.nn.reach import check_enough, plan_reaches
from kadril.nn.sharing import refuse_data, same_on_all, spread_together
from kadril.nn.split_state import collect_whole
from kadril.ops.box_gather import BoxGather
from kadril.ops.box_plan import BoxPlan
from kadril.ops.calling import uncompiled
from kadril.ops.structure import Structure
from kadril.partition import Interval, Partition, balanced_intervals
from kadril.partition.pairing import text

__all__ = ["DistributedLocallyConnected2d", "WholeLocallyConnected2d", "locally_connected"]


def locally_connected(
    box: torch.Tensor, weight: torch.Tensor, stride: tuple[int, ...]
) -> torch.Tensor:
    """Apply a filter of its own at each position.

    Args:
        box: N x C x H x W, padded already.
        weight: rows x columns x out x C x kernel rows x kernel columns.
        stride: for rows and columns.

    Returns:
        N x out x rows x columns.
    """
    rows, columns, num_out = weight.shape[:3]
    fields = functional.unfold(box, weight.shape[4:], stride=stride)  # N x (C k l) x positions
    filters = weight.reshape(rows * columns, num_out, -1)
    y = torch.bmm(filters, fields.permute(2, 1, 0))  # positions x out x N
    return y.permute(2, 1, 0).reshape(box.shape[0], num_out, rows, columns)


class DistributedLocallyConnected2d(torch.nn.Module):
    """A convolution whose filters are not shared, over the blocks of a partition.

    | tensor | shape on each worker |
    |---|---|
    | x | a block of N x in_channels x H x W, of any size |
    | weight | rows x columns x out_channels x in_channels x kernel, of its own outputs |
    | bias | rows x columns x out_channels, of its own outputs |
    | y | the balanced block of N x out_channels x output rows x output columns |

    Parameters are drawn as torch draws those of a convolution, whole, and given by the first worker
    to all, who keep their blocks. One exchange each in forward and backward pass.

    Args:
        P_x: axes for batch, channels, rows and columns; channels are not split. None for the
            ordinary layer, on whole images: `distribute` makes its partitioned twin.
        in_channels: of the input.
        out_channels: of the output.
        kernel_size: of the filters.
        input_size: rows and columns of the whole input.
        stride: from one position to the next.
        padding: zeros on both sides.
        bias: whether there is one.
        device: of parameters.
        dtype: of parameters.
        what: name of the layer in errors.

    Raises:
        ValueError: settings that make no sense, a partition that splits channels, or has more
            workers along an axis than there are outputs; when called, an input of another size.
    """

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        P_x: Partition | None,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        input_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        what: str | None = None,
    ) -> None:
        super().__init__()
        name = what or type(self).__name__
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = per_dim(kernel_size, 2, "kernel_size", name)
        self.input_size = per_dim(input_size, 2, "input_size", name)
        self.stride = per_dim(stride, 2, "stride", name)
        self.padding = per_dim(padding, 2, "padding", name)
        self.what = what or f"{name}({in_channels}, {out_channels}, {text(self.kernel_size)})"
        self.P_x = P_x
        self._check()
        self.windows = [
            ConvWindow(kernel, step, 1, pad, pad)
            for kernel, step, pad in zip(self.kernel_size, self.stride, self.padding, strict=True)
        ]
        sizes = zip(self.windows, self.input_size, strict=True)
        self.output_size = [window.output_size(size) for window, size in sizes]
        grid = (1, 1, 1, 1) if P_x is None else P_x.shape
        for dim, size in enumerate(self.output_size, 2):
            check_enough(grid, dim, "output", size, self.what)
        self.outputs = [
            balanced_intervals(size, length)
            for size, length in zip(self.output_size, grid[2:], strict=True)
        ]
        self.gather = None if P_x is None else BoxGather(P_x, self._plan, self.what)
        self._draw(bias, device, dtype)

    def _check(self) -> None:
        numbers = (self.in_channels, self.out_channels, *self.kernel_size, *self.stride)
        if min(numbers) < 1 or min(self.padding) < 0:
            raise ValueError(
                f"{self.what}: channels, kernel and stride must be at least 1, and padding at least"
                f" 0; stride is {text(self.stride)} and padding {text(self.padding)}"
            )
        if self.P_x is not None and (self.P_x.dim != 4 or self.P_x.shape[1] != 1):
            raise ValueError(
                f"{self.what}: P_x has shape {text(self.P_x.shape)}; it needs 4 axes, for batch,"
                " channels, rows and columns, and the one for channels must have length 1"
            )

    def _draw(self, has_bias: bool, device: Any, dtype: Any) -> None:
        shape = (*self.output_size, self.out_channels, self.in_channels, *self.kernel_size)
        bound = 1 / math.sqrt(self.in_channels * math.prod(self.kernel_size))
        whole = torch.empty(shape, device=device, dtype=dtype)
        offset = whole.new_empty(shape[:3]) if has_bias else None
        with torch.no_grad():
            for each in (whole, offset):
                if each is not None and not each.is_meta:
                    each.uniform_(-bound, bound)
        if self.P_x is not None:
            same_on_all(self.P_x, [whole, offset], what=f"parameters of {self.what}")
        for name, value in (("weight", whole), ("bias", offset)):
            block = None if value is None else torch.nn.Parameter(self._block(value).clone())
            self.register_parameter(name, block)

    @uncompiled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Filter; collective over the partition. See the class."""
        if self.P_x is not None and not self.P_x.active:
            refuse_data(x, self.what)
            return x.clone()
        # Before the exchange, so that in the backward pass it comes after, on every worker.
        weight, bias = self._filters()
        y = locally_connected(self._box(x), weight, self.stride)
        return y if bias is None else y + bias.permute(2, 0, 1)

    def _filters(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the filters of this worker's outputs; gradients are summed along the batch."""
        if self.P_x is None:
            return self.weight, self.bias
        weight, bias = spread_together(
            [self.weight, self.bias],
            self.P_x.axis_group([0]),
            what=f"parameters of {self.what}",
        )
        if weight is None:
            raise AssertionError("every worker has its filters")
        return weight, bias

    def _box(self, x: torch.Tensor) -> torch.Tensor:
        """Return what this worker's outputs are made of, padded."""
        if self.gather is not None:
            return self.gather(x).box
        self._check_size(list(x.shape[1:]))
        rows, columns = self.padding
        return functional.pad(x, [columns, columns, rows, rows])

    def _check_size(self, found: list[int]) -> None:
        if found != [self.in_channels, *self.input_size]:
            raise ValueError(
                f"{self.what}: the input has {found[0]} channels of {text(found[1:])}; the"
                f" layer was made for {self.in_channels} of {text(self.input_size)}"
            )

    def _plan(self, structure: Structure) -> BoxPlan:
        blocks = structure.blocks(self.what)
        self._check_size([along[-1].stop for along in blocks[1:]])
        return plan_reaches(structure, self.windows, self.what)

    def extra_repr(self) -> str:
        """Return the settings, and where the layer is."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size},"
            f" input_size={self.input_size}, stride={self.stride}, padding={self.padding},"
            f" bias={self.bias is not None}, P_x={self.P_x and text(self.P_x.shape)}"
        )

    # ---- blocks of the parameters ---------------------------------------------------------------

    def _place(self, index: tuple[int, ...]) -> tuple[slice, slice]:
        rows, columns = (self.outputs[dim][index[2 + dim]] for dim in (0, 1))
        return as_slice(rows), as_slice(columns)

    def _block(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this worker's positions of a whole parameter; none on other ranks."""
        if self.P_x is None:
            return whole
        return whole[:0] if self.P_x.index is None else whole[self._place(self.P_x.index)]

    def _collect(self, mine: torch.Tensor, P_x: Partition) -> torch.Tensor:
        """Return a whole parameter on every rank; collective over the world."""
        positions = itertools.product(*(range(length) for length in P_x.shape[2:]))
        places = [self._place((0, 0, *each)) for each in positions]
        shape = (*self.output_size, *mine.shape[2:])
        what = f"parameters of {self.what}"
        return collect_whole(P_x, [2, 3], mine.detach(), places, shape, what)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Save whole parameters; collective over the world."""
        if self.P_x is None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            return
        for name in ("weight", "bias"):
            mine = getattr(self, name)
            if mine is not None:
                destination[prefix + name] = self._collect(mine, self.P_x)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **others: Any
    ) -> None:
        """Load this worker's blocks of whole parameters."""
        for name in ("weight", "bias"):
            whole = state_dict.get(prefix + name)
            if whole is not None and tuple(whole.shape[:2]) == tuple(self.output_size):
                state_dict[prefix + name] = self._block(whole)
        super()._load_from_state_dict(state_dict, prefix, *rest, **others)


class WholeLocallyConnected2d(DistributedLocallyConnected2d):
    """The twin that `distribute` makes of an ordinary layer: every rank has all filters.

    A distributed model has the parameters of the ordinary one, on every rank, and so has this; a
    worker computes its own outputs with those of their positions. Gradients are summed over all
    workers, so each gets the whole.
    """

    @classmethod
    def of(
        cls, layer: DistributedLocallyConnected2d, P_x: Partition, *, what: str | None = None
    ) -> Self:
        """Return the partitioned twin of an ordinary layer, with its parameters.

        Args:
            layer: made with None for `P_x`; the same on all ranks.
            P_x: where the input is.
            what: name of the layer in errors.
        """
        twin = cls(
            P_x,
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            layer.input_size,
            layer.stride,
            layer.padding,
            layer.bias is not None,
            device="meta",
            what=what,
        )
        twin.weight, twin.bias = layer.weight, layer.bias
        return twin

    def _filters(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the filters of this worker's outputs; gradients are summed over all workers."""
        if self.P_x is None:
            raise AssertionError("a twin has a partition")
        weight, bias = spread_together(
            [self.weight, self.bias], self.P_x.group, what=f"parameters of {self.what}"
        )
        if weight is None:
            raise AssertionError("every worker has its filters")
        return self._block(weight), None if bias is None else self._block(bias)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        torch.nn.Module._save_to_state_dict(self, destination, prefix, keep_vars)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **others: Any
    ) -> None:
        torch.nn.Module._load_from_state_dict(self, state_dict, prefix, *rest, **others)


def as_slice(interval: Interval) -> slice:
    """Return the slice of an interval."""
    return slice(interval.start, interval.stop)
