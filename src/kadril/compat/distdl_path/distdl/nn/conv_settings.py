"""What all convolutions have in common: their settings, and the part that torch does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from kadril.ops import HaloExchanger
from kadril.partition import Partition

from ..backends.mpi.buffer import checked_manager
from .mixins import ConvMixin, HaloMixin
from .stored import Storing
from .window import CONVOLUTIONS, Window, as_tuple, window_exchanger

__all__ = ["ConvModule"]

TORCH_LAYERS = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}


class ConvModule(Storing, HaloMixin, ConvMixin):
    """A convolution with settings as torch has them.

    Attributes:
        num_dimensions: of the feature space.
    """

    num_dimensions = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int],
        padding: int | Sequence[int],
        padding_mode: str,
        dilation: int | Sequence[int],
        groups: int,
        bias: bool,
        buffer_manager: object,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = int(in_channels), int(out_channels)
        self.kernel_size = as_tuple(kernel_size, self.num_dimensions, "kernel_size")
        self.stride = as_tuple(stride, self.num_dimensions, "stride")
        self.padding = as_tuple(padding, self.num_dimensions, "padding")
        self.dilation = as_tuple(dilation, self.num_dimensions, "dilation")
        self.padding_mode, self.groups = padding_mode, int(groups)
        self.use_bias = bool(bias)
        self.buffer_manager = checked_manager(buffer_manager)

    @property
    def conv_layer(self) -> ConvModule:
        """The layer that has `weight` and `bias`: itself."""
        return self

    def _drawn(self, in_channels: int, out_channels: int, bias: bool) -> Any:
        """A torch layer, for parameters as torch draws them."""
        layer: Any = TORCH_LAYERS[self.num_dimensions]
        return layer(in_channels, out_channels, self.kernel_size, groups=self.groups, bias=bias)

    def _exchanger(self, P_x: Partition | None) -> HaloExchanger | None:
        """What gives this worker its inputs, padding included; None where torch does that.

        Args:
            P_x: of the input; None, or without this worker, where it has none.

        Raises:
            NotImplementedError: a mode of padding that needs more than neighbours.
        """
        what = type(self).__name__
        if P_x is None or not P_x.active or all(length == 1 for length in P_x.shape[2:]):
            return None
        if self.padding_mode not in ("zeros", "circular"):
            raise NotImplementedError(
                f"{what}: padding_mode {self.padding_mode!r} on several workers; there are zeros"
                " and circular here, and all modes in kadril.nn"
            )
        settings = zip(self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        windows = [Window(*each) for each in settings]
        return window_exchanger(P_x, windows, what, is_periodic=self.padding_mode == "circular")

    def _pad(self, x: torch.Tensor) -> torch.Tensor:
        """The input with its padding, where no exchange has brought it."""
        if not any(self.padding):
            return x
        widths = [width for each in reversed(self.padding) for width in (each, each)]
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return functional.pad(x, widths, mode=mode)

    def _convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """The convolution of an input that has its padding."""
        convolve: Any = CONVOLUTIONS[self.num_dimensions]
        result: torch.Tensor = convolve(x, weight, bias, self.stride, 0, self.dilation, self.groups)
        return result
