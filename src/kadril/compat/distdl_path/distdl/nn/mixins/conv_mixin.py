"""The window of a convolution."""

from __future__ import annotations

from typing import Any

__all__ = ["ConvMixin"]


class ConvMixin:
    """From an output to the first and the last input that it is made of."""

    def _compute_min_input_range(
        self, idx: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any
    ) -> Any:
        """The first; negative where that is padding."""
        return stride * idx - padding

    def _compute_max_input_range(
        self, idx: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any
    ) -> Any:
        """The last."""
        return stride * idx + dilation * (kernel_size - 1) - padding
