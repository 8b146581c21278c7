"""Transposed convolution of a tensor whose batch and spatial dims are split over workers.

    kernel 3, stride 2, padding 1                 input i goes into outputs 2 i - 1 ... 2 i + 1

    input blocks       |  0   1  |  2   3  |
    outputs           -1 0 1 2 3 4 5 6 7
    output blocks       | . . . . | . . . |       balanced
    inputs needed      [ 0   1   2 ]              those whose outputs touch the block
                             [ 2   3 ]

    y_r = cut( conv_transpose(box_r, w, b) )      box_r = halo(x)_r; outputs beyond the block are
                                                  cut off
    x*  = halo*( conv(y*_r, w) )                  w* = sum_r (w* of worker r),   b* likewise

Beyond the edge of the input are zeros, which give outputs that no input goes into: those of output
padding, and those between the inputs where the stride is wider than the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from typing_extensions import Self

from kadril.nn.conv.layer import ConvLayer, Size, check_axes
from kadril.nn.conv.transpose_input import ConvTransposeInput
from kadril.nn.conv.window import TransposedWindow
from kadril.nn.sharing import refuse_data, same_on_all, spread_together
from kadril.ops.structure import Structure, agree
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = ["DistributedConvTranspose1d", "DistributedConvTranspose2d", "DistributedConvTranspose3d"]

CONVOLUTIONS: dict[int, Callable[..., torch.Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


class DistributedConvTranspose(ConvLayer):
    """A transposed convolution over the spatial, and the batch, blocks of `P_x`.

    The arguments after `P_x` are those of the torch layer, in its order. Parameters are drawn by
    torch, and then given by the first worker to all: making one is collective over the partition.

    Args:
        P_x: where input and output are; its axis 1, the channels, has size 1.
        in_channels: of the input.
        out_channels: of the output.
        kernel_size: for each spatial dim, or for all.
        stride: likewise.
        padding: likewise; outputs that are cut off at both ends of the whole tensor.
        output_padding: likewise; outputs more at the last end.
        groups: into which channels are divided.
        bias: whether there is one.
        dilation: for each spatial dim, or for all.
        padding_mode: "zeros".
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: a partition that does not fit to the layer, or settings that torch refuses; on
            all ranks.
    """

    P_x: Partition

    def __init__(
        self,
        P_x: Partition,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        make: Any = self.torch_class  # whose signatures want tuples where sequences do
        layer = make(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            bias,
            dilation,
            padding_mode,
            device,
            dtype,
        )
        same_on_all(P_x, [layer.weight, layer.bias])
        self._set_up(layer, P_x, None, None, None)

    @classmethod
    def of(cls, layer: _ConvTransposeNd, P_x: Partition, *, what: str | None = None) -> Self:
        """The twin of a torch layer, which takes over its parameters themselves.

        Args:
            layer: the torch layer; its parameters are the same on all ranks.
            P_x: where input and output are.
            what: its name in errors.

        Raises:
            TypeError: not a layer of this kind.
            ValueError: as of the class.
        """
        cls._check_kind(layer)
        twin: Self = object.__new__(cls)
        torch.nn.Module.__init__(twin)
        twin._set_up(layer, P_x, None, None, what)
        return twin.train(layer.training)

    def _set_up(
        self,
        layer: _ConvNd,
        P_x: Partition,
        P_y: Partition | None,
        P_w: Partition | None,
        what: str | None,
    ) -> None:
        self._adopt_settings(layer, what)
        check_axes(self.what, "P_x", P_x, self.num_spatial)
        if P_x.shape[1] != 1:
            raise ValueError(
                f"{self.what}: axis 1 of P_x = {text(P_x.shape)} splits the channels; transposed"
                " convolutions are split along the batch and the spatial dims only"
            )
        self.P_x = P_x
        self._adopt_parameters(layer)
        self._inputs: dict[tuple[int, ...], ConvTransposeInput] = {}

    def forward(self, x: torch.Tensor, output_size: Sequence[int] | None = None) -> torch.Tensor:
        """Convolve; collective over the partition.

        Args:
            x: this worker's block of the input; a zero-volume tensor on other ranks.
            output_size: of the spatial dims of the whole output, or of all its dims; instead of
                `output_padding`.

        Returns:
            Its block of the output, which is balanced; a copy of `x` on other ranks.

        Raises:
            ValueError: the input does not fit to the partition or to the layer; on every worker,
                before any of it is moved.
            MismatchError: the blocks do not make up a tensor; likewise.
        """
        if not self.P_x.active or self.weight is None:
            refuse_data(x, self.what)
            return x.clone()
        structure = agree(self.P_x, x, self.what)
        extra = [int(each) for each in self.output_padding]
        if output_size is not None:
            extra = self._extra_for(output_size, structure)
        source = self.input_for(extra)
        plan = source.plan(structure)
        # Before the exchange, so that in the backward pass it comes after, on every worker.
        weight, bias = spread_together(
            [self.weight, self.bias], self.P_x.group, what=f"parameters of {self.what}"
        )
        box = source.gather(x, structure)
        y = CONVOLUTIONS[self.num_spatial](
            box, weight, bias, self.stride, plan.padding, plan.extra, self.groups, self.dilation
        )
        return y if plan.cut is None else y[plan.cut].contiguous()

    def input_for(self, output_padding: Sequence[int]) -> ConvTransposeInput:
        """What gives the workers their boxes, for one output padding."""
        key = tuple(output_padding)
        if key not in self._inputs:
            paddings = [int(width) for width in self.padding]
            windows = [
                TransposedWindow(kernel, stride, dilation, padding, extra)
                for kernel, stride, dilation, padding, extra in zip(
                    self.kernel_size, self.stride, self.dilation, paddings, key, strict=True
                )
            ]
            self._inputs[key] = ConvTransposeInput(self.P_x, self.in_channels, windows, self.what)
        return self._inputs[key]

    def _extra_for(self, output_size: Sequence[int], structure: Structure) -> list[int]:
        """The output padding that gives a size."""
        wanted = [int(size) for size in output_size]
        if len(wanted) == self.num_spatial + 2:
            wanted = wanted[2:]
        if len(wanted) != self.num_spatial:
            raise ValueError(
                f"{self.what}: output_size must have {self.num_spatial} or {self.num_spatial + 2}"
                f" numbers, got {list(output_size)}"
            )
        blocks = structure.blocks(self.what)
        source = self.input_for([0] * self.num_spatial)
        extra = []
        for dim, (size, window) in enumerate(zip(wanted, source.windows, strict=True), 2):
            least = window.output_size(blocks[dim][-1].stop)
            if not least <= size < least + window.stride:
                raise ValueError(
                    f"{self.what}: dim {dim} of the output can have {least} to"
                    f" {least + window.stride - 1} elements, not {size}"
                )
            extra.append(size - least)
        return extra

    def _where(self) -> str:
        return f"output_padding={self.output_padding}, P_x={text(self.P_x.shape)}"


class DistributedConvTranspose1d(DistributedConvTranspose):
    """`torch.nn.ConvTranspose1d` of a tensor on a partition: batch x 1 x length."""

    num_spatial = 1
    torch_class = torch.nn.ConvTranspose1d


class DistributedConvTranspose2d(DistributedConvTranspose):
    """`torch.nn.ConvTranspose2d` of a tensor on a partition: batch x 1 x height x width."""

    num_spatial = 2
    torch_class = torch.nn.ConvTranspose2d


class DistributedConvTranspose3d(DistributedConvTranspose):
    """`torch.nn.ConvTranspose3d` of a tensor on a partition: batch x 1 x depth x height x width."""

    num_spatial = 3
    torch_class = torch.nn.ConvTranspose3d
