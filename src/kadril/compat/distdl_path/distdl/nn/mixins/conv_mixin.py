"""The window of a convolution."""

from __future__ import annotations

from typing import Any

__all__ = ["ConvMixin"]


class ConvMixin:
    """The first and the last input that an output is made of."""

    def _compute_min_input_range(
        self, idx: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any
    ) -> Any:
        """Return the first; negative where that is padding."""
        return stride * idx - padding

    def _compute_max_input_range(
        self, idx: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any
    ) -> Any:
        """Return the last."""
        return stride * idx + dilation * (kernel_size - 1) - padding
