"""The old name of `Repartition`."""

from __future__ import annotations

import warnings

from .repartition import Repartition as DistributedTranspose

__all__ = ["DistributedTranspose"]

warnings.warn(
    "DistributedTranspose is the old name of distdl.nn.Repartition",
    DeprecationWarning,
    stacklevel=2,
)
