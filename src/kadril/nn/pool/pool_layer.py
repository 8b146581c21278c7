"""Base of max and average pooling: settings, and windows that match the input.

    y_o = reduce of x_i  for i in the window of o         (maximum, or average)

Input and output lie on the same partition. Windows may reach over any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from typing_extensions import Self

from kadril.nn.box_layer import BoxLayer, per_dim
from kadril.nn.pool.pool_window import PoolWindow
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = ["PoolLayer", "Size", "nothing_with_indices"]

Size = int | Sequence[int]


class PoolLayer(BoxLayer):
    """Base of the poolings with a kernel.

    Attributes:
        kernel_size, stride, padding, dilation: for each spatial dim.
        ceil_mode: whether a last window may go beyond the padding.
        torch_settings: of the torch layer, besides those that all poolings have.
    """

    torch_settings: tuple[str, ...] = ()

    def __init__(
        self,
        P_x: Partition,
        kernel_size: Size,
        stride: Size | None,
        padding: Size,
        dilation: Size,
        ceil_mode: bool,
        what: str | None,
    ) -> None:
        num_dims = self.num_spatial
        name = what or type(self).__name__
        kernels = per_dim(kernel_size, num_dims, "kernel_size", name)
        super().__init__(P_x, what or f"{name}(kernel {text(kernels)})")
        self.kernel_size = kernels
        # As torch's: windows that do not overlap.
        steps = kernels if stride is None else stride
        self.stride = per_dim(steps, num_dims, "stride", name)
        self.padding = per_dim(padding, num_dims, "padding", name)
        self.dilation = per_dim(dilation, num_dims, "dilation", name)
        self.ceil_mode = ceil_mode
        self.windows = [
            PoolWindow(kernel, step, pad, gap, ceil_mode, is_whole=length == 1)
            for kernel, step, pad, gap, length in zip(
                self.kernel_size,
                self.stride,
                self.padding,
                self.dilation,
                P_x.shape[self.first_spatial :],
                strict=True,
            )
        ]
        for dim, window in enumerate(self.windows, self.first_spatial):
            self._check_window(dim, window)

    @classmethod
    def of(cls, layer: torch.nn.Module, P_x: Partition, *, what: str | None = None) -> Self:
        """Make the twin of a torch layer.

        Raises:
            TypeError: it is of another kind.
        """
        given = cls.check_kind(layer)
        names = ("kernel_size", "stride", "padding", "ceil_mode", *cls.torch_settings)
        # torch's one-dimensional average has no divisor.
        settings = {name: getattr(given, name) for name in names if hasattr(given, name)}
        return cls(P_x, **settings, what=what)

    def _check_window(self, dim: int, window: PoolWindow) -> None:
        if min(window.kernel, window.stride, window.dilation) < 1 or window.padding < 0:
            raise ValueError(
                f"{self.what}: dim {dim} has kernel {window.kernel}, stride {window.stride},"
                f" dilation {window.dilation} and padding {window.padding}; the first three must"
                " be at least 1, and the last at least 0"
            )
        # torch's one-dimensional pooling does not count the gaps of a dilated kernel.
        half = (window.kernel if self.num_spatial == 1 else window.reach) // 2
        if window.padding > half:
            raise ValueError(
                f"{self.what}: dim {dim} has padding {window.padding}, more than half of the"
                f" kernel, {half}: windows could lie in the padding alone"
            )

    def reaches(self, sizes: Sequence[int], dtype: torch.dtype) -> Sequence[PoolWindow]:
        """Return the windows.

        Raises:
            ValueError: one is wider than the input with its padding.
        """
        for dim, window in enumerate(self.windows, self.first_spatial):
            if window.output_size(sizes[dim]) < 1:
                raise ValueError(
                    f"{self.what}: dim {dim} has {sizes[dim]} elements,"
                    f" {sizes[dim] + 2 * window.padding} with padding, and the kernel reaches over"
                    f" {window.reach}"
                )
        return self.windows

    @property
    def torch_padding(self) -> list[int]:
        """Padding that is left to torch's own pooling."""
        return [window.torch_padding for window in self.windows]

    def extra_repr(self) -> str:
        """Return the settings, as torch shows them, and where the layer is."""
        return (
            f"P_x={text(self.P_x.shape)}, kernel_size={self.kernel_size}, stride={self.stride},"
            f" padding={self.padding}, dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


def nothing_with_indices(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a max pooling gives on a rank that has no part in the input."""
    nothing = x.clone()
    return nothing, nothing.detach().long()
