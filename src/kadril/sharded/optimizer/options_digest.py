"""A digest of the options that ranks step with, each its own part: they have to be the same."""

from __future__ import annotations

import zlib
from typing import Any

import torch

__all__ = ["options_digest"]


def options_digest(optimizer: torch.optim.Optimizer, batch_size: float) -> int:
    """Of what has to be the same on all ranks when they step."""
    options = [
        [comparable(value) for key, value in group.items() if key not in ("params", "param_names")]
        for group in optimizer.param_groups
    ]
    return zlib.crc32(repr((options, batch_size)).encode())


def comparable(option: Any) -> Any:
    """What can be compared of an option: of an object that is its kind."""
    if isinstance(option, torch.Tensor):
        return option.tolist()
    if isinstance(option, list | tuple):
        return [comparable(each) for each in option]
    is_plain = option is None or isinstance(option, bool | int | float | complex | str)
    return option if is_plain else type(option).__name__
