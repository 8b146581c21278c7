"""The backend of an experiment: one stream of random numbers, and the dtype to compute in.

Every rank draws the same numbers in the same order, of the global shape, and keeps its part. So
what a model begins with depends on the seed and on the sizes of its layers, never on the number of
ranks. The stream is numpy's MT19937, as neon's was: with the same seed, sizes and order of layers
the first weights are those that neon drew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import torch

__all__ = ["Backend", "WeightInit"]

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class WeightInit(msgspec.Struct, forbid_unknown_fields=True):
    """A way to draw weights.

    Attributes:
        type: "uniform" from `low` to `high`; "gaussian" or "normal" with mean `loc` and deviation
            `scale`; "node_normalized", which is uniform and spreads as far as
            `scale` * sqrt(6 / (inputs + outputs)).
        low: least value of "uniform".
        high: greatest value of "uniform".
        loc: mean of "gaussian".
        scale: see `type`.
        bias_init: of layers with a bias.
        dtype: of the weights; that of the backend where None.
    """

    type: Literal["uniform", "gaussian", "normal", "node_normalized"] = "uniform"
    low: float = 0.0
    high: float = 1.0
    loc: float = 0.0
    scale: float = 1.0
    bias_init: float = 0.0
    dtype: str | None = None


class Backend:
    """Random numbers and dtypes of an experiment; also known as neon's `Numpy` and `CPU`.

    Args:
        rng_seed: of the stream of random numbers; the same on all ranks.
        dtype: "float32" or "float64".

    Attributes:
        rng: the stream; on each rank one of its own, in the same state.
    """

    def __init__(self, rng_seed: int = 0, dtype: Literal["float32", "float64"] = "float32") -> None:
        self.rng_seed = rng_seed
        self.dtype = DTYPES[dtype]
        self.rng = np.random.RandomState(rng_seed)

    def gen_weights(
        self, size: Sequence[int], weight_init: WeightInit | Mapping[str, Any]
    ) -> torch.Tensor:
        """Draw weights of a global shape: the next numbers of the stream, row by row.

        Args:
            size: of the whole matrix, outputs by inputs.
            weight_init: see `WeightInit`.

        Raises:
            msgspec.ValidationError: there is no such way to draw them.
        """
        how = msgspec.convert(weight_init, WeightInit)
        if how.type == "uniform":
            drawn = self.rng.uniform(how.low, how.high, size)
        elif how.type == "node_normalized":
            reach = how.scale * np.sqrt(6.0 / sum(size))
            drawn = self.rng.uniform(-reach, reach, size)
        else:
            drawn = self.rng.normal(how.loc, how.scale, size)
        dtype = self.dtype if how.dtype is None else DTYPES[how.dtype]
        return torch.from_numpy(drawn).to(dtype)

    def shuffled(self, count: int) -> list[int]:
        """Return 0 to `count` - 1 in a random order."""
        order = list(range(count))
        self.rng.shuffle(order)
        return order
