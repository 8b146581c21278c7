"""Dropouts on replicas: they have to drop the same elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kadril.nn.distribution.call import Running
from kadril.nn.distribution.layout import Lines
from kadril.nn.sharing import same_on_all

__all__ = ["make_dropout"]


def make_dropout(make: Callable[[Lines], Running], lines: Lines) -> Running:
    """A dropout with a seed that is the same on all lines of the partition."""
    made: Any = make(lines)
    seed = torch.tensor([made.seed])
    same_on_all(lines.P, [seed], what=made.what)
    made.seed = int(seed)
    return made  # type: ignore[no-any-return]
