"""Parameters that every worker of a partition has a copy of.

    begin     the first worker's values are given to all                       (`same_on_all`)
    use       y_r = w                    w* = sum_r y*_r      on each          (`spread_together`)

So the copies are equal at the start, get equal gradients, and stay equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril.ops.calling import beneath, tie, tied
from kadril.ops.linear_operator import Adjoint, pull_back
from kadril.ops.replicated import SpreadOperator
from kadril.partition import Group, Interval, Partition

__all__ = ["interval_here", "refuse_data", "same_on_all", "spread_together"]


def interval_here(P_x: Partition, blocks: Sequence[Sequence[Interval]], dim: int) -> Interval:
    """Return the interval of a dim that this worker holds.

    Args:
        P_x: a partition that this rank is in.
        blocks: of the tensor, as `Structure.blocks` gives them.
        dim: of the tensor, and the axis of the partition along which it is split.
    """
    if P_x.index is None:
        raise AssertionError("only workers of the partition come here")
    return blocks[dim][P_x.index[dim]]


def refuse_data(x: torch.Tensor, what: str) -> None:
    """Refuse a tensor with elements on a rank outside of the partition.

    Raises:
        ValueError: it has elements.
    """
    if x.numel():
        raise ValueError(
            f"{what}: this rank is not in the partition of the input, and holds a tensor of shape"
            f" {tuple(x.shape)}; give it a zero-volume tensor"
        )


def same_on_all(
    partition: Partition, tensors: Sequence[torch.Tensor | None], *, what: str = "parameters"
) -> None:
    """Copy the values of the first worker to all, in place; collective over the partition.

    Tensors on the meta device, the same on all workers, have no values, and are left out.
    """
    if not partition.active or partition.size == 1:
        return
    for tensor in tensors:
        if tensor is None or not tensor.numel() or tensor.is_meta:
            continue
        data = tensor.detach().contiguous()
        partition.transport.broadcast(data, 0, name=what)
        with torch.no_grad():
            tensor.copy_(data)


def spread_together(
    tensors: Sequence[torch.Tensor | None], group: Group, *, what: str
) -> list[torch.Tensor | None]:
    """Use replicated tensors as `ops.spread` does, with one collective for all their gradients.

    Gradients are copied into one message, so this is for small ones.

    Args:
        tensors: the same on all ranks of the group; of one dtype.
        group: the workers that hold them.
        what: name of the tensors in errors.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    if group.transport.size == 1 or not given:
        return list(tensors)
    used = iter(beneath(SpreadTogetherFunction)(group, what, *given))
    return [None if tensor is None else next(used) for tensor in tensors]


class SpreadTogetherFunction(torch.autograd.Function):
    """A copy of each tensor for each worker; the adjoint is the sum."""

    @staticmethod
    def forward(
        ctx: Any, group: Group, what: str, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """y_r = x."""
        ctx.operator, ctx.shapes = SpreadOperator(group, what), [each.shape for each in tensors]
        _, end = tie(ctx, tensors[0])
        return *(tensor.view_as(tensor) for tensor in tensors), end

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """x* = sum_r y*_r."""
        given = zip(grads[:-1], ctx.shapes, strict=True)
        parts = [
            tied(ctx, None).new_zeros(shape.numel()) if grad is None else grad.reshape(-1)
            for grad, shape in given
        ]
        message = tied(ctx, torch.cat(parts))
        summed = pull_back(message, Adjoint(ctx.operator, message.shape, message.dtype))
        found = torch.split(summed, [shape.numel() for shape in ctx.shapes])
        whole = [part.view(shape) for part, shape in zip(found, ctx.shapes, strict=True)]
        return None, None, *whole
