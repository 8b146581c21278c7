"""Zero-volume tensors: what a rank has in place of a block, if it holds none of a tensor.

They flow through the graph like any other, so that the backward pass gets to every rank: all of
them have to be there for its collectives.
"""

from __future__ import annotations

from typing import Any

import torch

from kadril.ops.calling import anchor_for, apply, uncompiled
from kadril.partition import Partition

__all__ = ["correct_zero_volume", "nothing_of", "zero_volume_tensor"]


def zero_volume_tensor(
    batch: int | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Return a tensor without elements.

    Args:
        batch: size of its first dim, the second being 0; one dim of size 0 where None.
        dtype: of the elements that it does not have.
        requires_grad: whether gradients are to get to it.
        device: device of the tensor.
    """
    shape = (0,) if batch is None else (batch, 0)
    return torch.empty(shape, dtype=dtype, requires_grad=requires_grad, device=device)


def nothing_of(x: torch.Tensor, partition: Partition, what: str) -> torch.Tensor:
    """Return the result on a rank that takes no part: a copy of its empty tensor.

    Raises:
        ValueError: it has some, which would be lost.
    """
    if x.numel():
        raise ValueError(
            f"{what}: this rank is not in the partition of ranks {list(partition.ranks)}, and holds"
            f" a tensor of shape {list(x.shape)}; give zero_volume_tensor()"
        )
    return x.clone()


@uncompiled
def correct_zero_volume(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor to call `backward()` on: a copy, or the number 0 where there is nothing.

    For the end of a network whose result only some ranks have.
    """
    return apply(CorrectFunction, x, anchor_for(x.numel() == 0))


class CorrectFunction(torch.autograd.Function):
    """A tensor without elements as the number 0, and back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """y = x, or 0."""
        ctx.shape, ctx.has_volume = x.shape, x.numel() > 0
        return x.clone() if ctx.has_volume else x.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """x* = y*, or nothing."""
        # Expanded to no elements, rather than made anew, it stays in the graph of a second pass.
        return (grads[0] if ctx.has_volume else grads[0].expand(ctx.shape)), None
