"""Settings and parameters that all convolutions have, and the layer of `kadril.nn` beneath them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril import nn
from kadril.partition import Group, Partition

from ..backends.mpi.buffer import checked_manager
from .adapter import Stateless, per_dim, stateless
from .mixins import ConvMixin, HaloMixin
from .owned_parameters import OwnedParameters, replicate

__all__ = ["ConvModule"]

# By the number of feature dims.
TORCH_LAYERS: dict[int, Any] = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}
KADRIL_LAYERS: dict[int, Any] = {
    1: nn.DistributedConv1d,
    2: nn.DistributedConv2d,
    3: nn.DistributedConv3d,
}


class ConvModule(OwnedParameters, HaloMixin, ConvMixin):
    """Base of the convolutions.

    Args:
        in_channels: of the global input.
        out_channels: of the global output.
        kernel_size, stride, padding, padding_mode, dilation, groups, bias: as torch's.
        buffer_manager: not needed here.

    Attributes:
        num_dimensions: of the feature space.
        conv_layer: the layer that has `weight` and `bias`: itself.
    """

    num_dimensions = 0

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 1,
        kernel_size: int | Sequence[int] = 1,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        padding_mode: str = "zeros",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        buffer_manager: object = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = int(in_channels), int(out_channels)
        self.kernel_size = per_dim(kernel_size, self.num_dimensions, "kernel_size")
        self.stride = per_dim(stride, self.num_dimensions, "stride")
        self.padding = per_dim(padding, self.num_dimensions, "padding")
        self.dilation = per_dim(dilation, self.num_dimensions, "dilation")
        self.padding_mode, self.groups = padding_mode, int(groups)
        self.use_bias = bool(bias)
        self.buffer_manager = checked_manager(buffer_manager)
        # Of the parameters that this worker uses; and who use the same, their owner first.
        self._shapes: dict[str, torch.Size] = {}
        self._users: Group | None = None

    @property
    def conv_layer(self) -> ConvModule:
        """Return the layer itself; see the class."""
        return self

    def _draw(self, in_channels: int, out_channels: int) -> Any:
        """Return a torch layer with so many channels, for parameters as torch draws them."""
        layer = TORCH_LAYERS[self.num_dimensions]
        return layer(
            in_channels, out_channels, self.kernel_size, groups=self.groups, bias=self.use_bias
        )

    def _convolution(
        self, P_x: Partition, P_y: Partition | None = None, P_w: Partition | None = None
    ) -> Stateless:
        """Return the convolution of `kadril.nn` on these partitions, of parameters and input."""
        layer = TORCH_LAYERS[self.num_dimensions](
            self.in_channels,
            self.out_channels,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            self.use_bias,
            self.padding_mode,
            device="meta",
        )
        twin = KADRIL_LAYERS[self.num_dimensions].of(layer, P_x, P_y, P_w, what=type(self).__name__)
        return stateless(twin)

    def _replicated_parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters that this worker uses, from their owner; collective over users."""
        what, users = type(self).__name__, self._users
        return {
            name: replicate(getattr(self, name), shape, users, f"{name} of {what}")
            for name, shape in self._shapes.items()
            if users is not None
        }
