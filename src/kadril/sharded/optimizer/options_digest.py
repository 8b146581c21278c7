"""A digest of the options that ranks step with: each steps its own part, with the same options."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from kadril.sharded.ownership.group_options import group_options

__all__ = ["options_digest"]


def options_digest(optimizer: torch.optim.Optimizer, batch_size: float) -> int:
    """Return a digest of what has to be the same on all ranks when they step."""
    options = [
        [comparable(value) for value in options.values()] for options in group_options(optimizer)
    ]
    return zlib.crc32(repr((options, batch_size)).encode())


def comparable(option: Any) -> Any:
    """Return what can be compared between ranks: a plain value, or the class of an object."""
    if isinstance(option, torch.Tensor):
        return option.tolist()
    if isinstance(option, list | tuple):
        return [comparable(each) for each in option]
    is_plain = option is None or isinstance(option, bool | int | float | complex | str)
    return option if is_plain else type(option).__name__
