"""A request for a reduction that comes back every step under the same name."""

from __future__ import annotations

from typing import Any

import torch

from kadril.torch.compression import NoneCompressor
from kadril.torch.ops import allreduce_async_, synchronize
from kadril.torch.optimizer.settings import Settings

__all__ = ["Request"]


class Request:
    """One named all-reduce, with what the settings put around it.

    Args:
        name: that ranks match by.
        settings: reduction, scales, compression, process set.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        self._is_plain = settings.compression is NoneCompressor
        self._options: dict[str, Any] = {
            "name": name,
            "op": settings.op,
            "prescale_factor": settings.prescale,
            "postscale_factor": settings.postscale,
            "process_set": settings.process_set,
        }
        self._handle: int | None = None
        self._sent: torch.Tensor | None = None
        self._context: Any = None

    def submit(self, tensor: torch.Tensor) -> None:
        """Start the reduction of a contiguous tensor, in place; `wait` gives the result to it."""
        if self._is_plain:
            self._sent = tensor
        else:
            self._sent, self._context = self.settings.compression.compress(tensor)
        self._handle = allreduce_async_(self._sent, **self._options)

    def wait(self, tensor: torch.Tensor) -> None:
        """Wait until the result is in the tensor that was submitted."""
        handle, self._handle = self._handle, None
        sent, self._sent = self._sent, None
        if handle is None or sent is None:
            return
        synchronize(handle)
        if sent is not tensor:
            tensor.copy_(self.settings.compression.decompress(sent, self._context))
