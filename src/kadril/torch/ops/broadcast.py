"""Broadcast: every rank gets the root's tensor.

    y_r = x_root                   for every rank r

Backward, with g_r the gradient of y_r:

    x*_root = 1/n sum_s g_s,   x*_r = 0 elsewhere

The backward pass of that is the broadcast again. See `kadril.torch.ops` for the convention.
"""

from __future__ import annotations

from typing import Any

import torch

from kadril.engine import ProcessSetConductor, Verb
from kadril.shared_engine.handles import Finish, keep, synchronize
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.shared_engine.reduce_ops import Average
from kadril.torch.ops.allreduce import run
from kadril.torch.ops.staging import conductor_of, put_back, staged

__all__ = ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]


def member_of(conductor: ProcessSetConductor, root_rank: int) -> int:
    """The member of the set that has a world rank.

    Raises:
        ValueError: there is none.
    """
    if root_rank not in conductor.ranks:
        raise ValueError(
            f"root_rank {root_rank} is not in the process set, which has ranks"
            f" {list(conductor.ranks)}; it is the rank in the world, also within a set"
        )
    return conductor.ranks.index(root_rank)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a broadcast and give its handle; `synchronize` gives a tensor of its own.

    Args:
        tensor: of the same shape and dtype on all ranks; only the root's values matter.
        root_rank: whose; its rank in the world, also within a process set.
        name: what ranks know the operation by.
        process_set: the ranks that take part.

    Raises:
        ValueError: the root is not in the set, the name is in use, or this rank is not in the set.
    """
    conductor = conductor_of(process_set)
    root = member_of(conductor, root_rank)
    source = staged(tensor)
    target = torch.empty_like(source)
    completion = conductor.submit(Verb.BROADCAST, source, target, name=name, root=root)
    if tensor.is_cpu:
        return keep(conductor, completion, target, source)
    return keep(conductor, completion, Finish(lambda _: target.to(tensor.device)), source)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a broadcast in place and give its handle. See `broadcast_async`."""
    conductor = conductor_of(process_set)
    root = member_of(conductor, root_rank)
    memory = staged(tensor)
    completion = conductor.submit(Verb.BROADCAST, memory, name=name, root=root)
    return keep(conductor, completion, Finish(lambda _: put_back(tensor, memory)), memory)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Broadcast in place and give the tensor. Not differentiable. See `broadcast_async`."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Broadcast, differentiable. See `broadcast_async`."""
    result: torch.Tensor = Broadcast.apply(  # type: ignore[no-untyped-call]
        tensor, root_rank, name, process_set
    )
    return result


class Broadcast(torch.autograd.Function):
    """The differentiable broadcast."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Copy the root's values."""
        ctx.arguments = (root_rank, process_set)
        result: torch.Tensor = synchronize(broadcast_async(tensor, root_rank, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of the arguments; only the tensor has one."""
        result = MeanToRoot.apply(  # type: ignore[no-untyped-call]
            gradients[0], *ctx.arguments
        )
        return result, None, None, None


class MeanToRoot(torch.autograd.Function):
    """The mean over all ranks on the root, zero elsewhere: the backward of the broadcast."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, process_set: ProcessSet
    ) -> torch.Tensor:
        """Reduce to the root."""
        ctx.arguments = (root_rank, None, process_set)
        conductor = conductor_of(process_set)
        mean = run(tensor, Average, 1.0, 1.0, process_set)
        return mean if conductor.ranks[conductor.rank] == root_rank else torch.zeros_like(mean)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Broadcast: also a rank whose part was zero gets the root's gradient."""
        result = Broadcast.apply(  # type: ignore[no-untyped-call]
            gradients[0], *ctx.arguments
        )
        return result, None, None
