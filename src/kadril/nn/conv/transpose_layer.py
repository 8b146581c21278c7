"""What all partitioned transposed convolutions have in common: their inputs, and output sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from kadril.nn.conv.layer import ConvLayer
from kadril.nn.conv.transpose_input import ConvTransposeInput
from kadril.nn.conv.window import TransposedWindow
from kadril.ops.structure import Structure
from kadril.partition import Partition

__all__ = ["TRANSPOSED", "ConvTransposeLayer"]

TRANSPOSED: dict[int, Callable[..., torch.Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


class ConvTransposeLayer(ConvLayer):
    """Base of the partitioned transposed convolutions."""

    P_x: Partition
    _inputs: dict[tuple[int, ...], ConvTransposeInput]

    def input_of(
        self, structure: Structure, output_size: Sequence[int] | None
    ) -> ConvTransposeInput:
        """What gives the workers their boxes, for an output of this size; None for the least."""
        extra = [int(each) for each in self.output_padding]
        if output_size is not None:
            extra = self._extra_for(output_size, structure)
        return self.input_for(extra)

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
