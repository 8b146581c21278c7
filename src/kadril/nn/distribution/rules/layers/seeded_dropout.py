"""Dropouts on replicas: they have to drop the same elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kadril.nn.distribution.layout import Subgrids
from kadril.nn.distribution.rules.call import BlockFunction
from kadril.nn.sharing import same_on_all

__all__ = ["make_dropout"]


def make_dropout(make: Callable[[Subgrids], BlockFunction], subgrids: Subgrids) -> BlockFunction:
    """Make a dropout with a seed that is the same on all workers of the partition."""
    made: Any = make(subgrids)
    seed = torch.tensor([made.seed])
    same_on_all(subgrids.P, [seed], what=made.what)
    made.seed = int(seed)
    return made  # type: ignore[no-any-return]
