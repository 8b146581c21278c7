"""Dropout whose mask does not depend on how the tensor is split.

    y = x m / (1 - p)            x* = y* m / (1 - p)            m: 1 where kept, 0 elsewhere

The mask m follows from a seed, the number of the call, and places in the global tensor alone
(`dropout/mask.py`): on one worker or on a hundred, the same elements are kept. The seed is that of
the first worker of the partition, agreed on when the layer is made. A layer counts its calls in
training; every one has another mask. So a part of a model that is run again to save memory
(activation checkpointing) has to set `num_calls` back, as there is no generator whose state torch
could restore.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from kadril.nn.dropout.mask import keep_mask, signed_seed
from kadril.nn.sharing import refuse_data, same_on_all
from kadril.ops.calling import uncompiled
from kadril.ops.structure import agree
from kadril.partition import Interval, Partition
from kadril.partition.pairing import text

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "DistributedAlphaDropout",
    "DistributedDropout",
    "DistributedDropout1d",
    "DistributedDropout2d",
    "DistributedDropout3d",
    "DistributedFeatureAlphaDropout",
]

# The value to which a SELU saturates: -scale * alpha.
SATURATED = -1.7580993408473766


class DistributedDropout(torch.nn.Module):
    """`torch.nn.Dropout` of a tensor that is split among workers.

    Making one is collective over the partition; calling it in training too, and then nothing but
    the sizes of blocks is sent. In evaluation it gives back its input.

    Args:
        P_x: one axis for each dim of the input.
        p: the probability of an element to be set to 0.
        inplace: whether to work in the input's memory.
        seed: of masks; drawn from torch's generator where None. That of the first worker counts.
        what: name of the layer in errors.

    Attributes:
        seed: seed from which all masks follow.
        num_calls: in training, so far.

    Raises:
        ValueError: p is not from 0 to 1; or, when called, on all workers, the input does not have
            one dim for each axis of `P_x`.
        MismatchError (when called): the blocks do not fit together.
    """

    num_masked_dims: int | None = None

    def __init__(
        self,
        P_x: Partition,
        p: float = 0.5,
        inplace: bool = False,
        *,
        seed: int | None = None,
        what: str | None = None,
    ) -> None:
        super().__init__()
        self.P_x = P_x
        self.p = p
        self.inplace = inplace
        self.what = what or f"{type(self).__name__}({p})"
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"{self.what}: p must be from 0 to 1, got {p}")
        drawn = torch.randint(-(2**62), 2**62, (1,))
        if seed is not None:
            drawn[0] = signed_seed(seed)
        same_on_all(P_x, [drawn], what=f"seed of {self.what}")
        self.seed = int(drawn)
        self.num_calls = 0

    @classmethod
    def of(cls, layer: Any, P_x: Partition, *, what: str | None = None) -> Self:
        """Return the partitioned twin of a layer; collective over the partition, for the seed."""
        return cls(P_x, layer.p, layer.inplace, what=what).train(layer.training)

    @uncompiled
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Drop elements; collective over the partition in training. See the class."""
        if not self.P_x.active:
            refuse_data(input, self.what)
            return input.clone()
        if not self.training:
            return input
        kept = self._kept(input)
        self.num_calls += 1
        return self._drop(input, kept)

    def extra_repr(self) -> str:
        """Show the settings, and where the layer lies."""
        return f"p={self.p}, inplace={self.inplace}, P_x={text(self.P_x.shape)}"

    def _kept(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mask of this worker's block."""
        blocks = agree(self.P_x, x, self.what).blocks(self.what)
        num_dims = len(blocks) if self.num_masked_dims is None else self.num_masked_dims
        if len(blocks) < num_dims:
            raise ValueError(
                f"{self.what}: P_x has shape {text(self.P_x.shape)}; it needs axes for batch and"
                " channels at least"
            )
        if self.P_x.index is None:
            raise AssertionError("only workers of the partition come here")
        block: list[Interval] = [
            each[place] for each, place in zip(blocks[:num_dims], self.P_x.index, strict=False)
        ]
        sizes = [each[-1].stop for each in blocks[:num_dims]]
        mask = keep_mask(block, sizes, self.p, self.seed, self.num_calls)
        return mask.view(*mask.shape, *[1] * (len(blocks) - num_dims)).to(x.device)

    def _drop(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        factor = scaled(kept, 0.0 if self.p == 1.0 else 1.0 / (1.0 - self.p), x.dtype)
        return x.mul_(factor) if self.inplace else x * factor


def scaled(kept: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Return a factor for each element: `scale` where it is kept, and 0 elsewhere.

    One product, as torch has it: a mask of bools costs three times as much, in either direction.
    """
    is_number = dtype.is_floating_point or dtype.is_complex
    return kept.to(dtype if is_number else torch.get_default_dtype()).mul_(scale)


class DistributedDropout1d(DistributedDropout):
    """`torch.nn.Dropout1d`: whole channels (n, c) of an input of shape (N, C, L) are dropped."""

    num_masked_dims = 2


class DistributedDropout2d(DistributedDropout):
    """`torch.nn.Dropout2d`: whole channels (n, c) of an input of shape (N, C, H, W) are dropped."""

    num_masked_dims = 2


class DistributedDropout3d(DistributedDropout):
    """`torch.nn.Dropout3d`: whole channels of an input of shape (N, C, D, H, W) are dropped."""

    num_masked_dims = 2


class DistributedAlphaDropout(DistributedDropout):
    """`torch.nn.AlphaDropout`: dropped elements get the value s to which a SELU saturates.

        y = a (x m + s (1 - m)) + b            a = 1 / sqrt((1 - p) (1 + p s^2)),   b = -a p s

    so that a mean of 0 and a variance of 1 stay what they are.
    """

    def _drop(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        if self.p == 1.0:
            return x.mul_(0.0) if self.inplace else x * 0.0
        scale = 1.0 / math.sqrt((1.0 - self.p) * (1.0 + self.p * SATURATED**2))
        shift = -scale * self.p * SATURATED
        factor = scaled(kept, scale, x.dtype)
        # shift where kept, and scale * SATURATED + shift elsewhere
        offset = (factor * -SATURATED).add_(scale * SATURATED + shift)
        return x.mul_(factor).add_(offset) if self.inplace else (x * factor).add_(offset)


class DistributedFeatureAlphaDropout(DistributedAlphaDropout):
    """`torch.nn.FeatureAlphaDropout`: as `DistributedAlphaDropout`, for whole channels (n, c)."""

    num_masked_dims = 2
