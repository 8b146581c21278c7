"""The step of the optimizer, overlapped with the gather of stepped parameters.

Where ranks share the memory of the parameters a barrier is enough. Where only those of a host do,
they meet before they write, and gather what ranks of other hosts have stepped. Elsewhere each rank
gathers what the others have stepped, bucket by bucket. A gather over a network is mostly waiting,
so it runs in another thread beside the rest of the step:

    this thread      | step portion 0 | step portion 1 | step portion 2 |
    other thread                      | gather 0       | gather 1       | gather 2 |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kadril.sharded.optimizer.supported_optimizers import is_of_torch
from kadril.sharded.ownership.bucket import Bucket
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.communication_thread import CommunicationThread

__all__ = ["scale_gradients", "step_and_publish"]

# Each portion is one call of the optimizer; the first gather begins after the first portion.
NUM_PORTIONS = 4


def step_and_publish(
    optimizer: torch.optim.Optimizer,
    shards: Shards,
    thread: CommunicationThread | None,
    arguments: Mapping[str, Any],
) -> None:
    """Step this rank's pieces, and let all ranks have them; collective.

    Args:
        optimizer: optimizer of the pieces.
        shards: all parameters.
        thread: the thread that gathers beside the step; None to gather after it.
        arguments: further arguments of the optimizer's `step`.
    """
    shards.meet_on_host()
    has_shared = any(bucket.is_shared for bucket in shards.buckets)
    if thread is None or has_shared or not may_be_portioned(optimizer):
        optimizer.step(**arguments)
        shards.publish()
        return
    for portion in portions_of(shards.buckets):
        with only_pieces_of(optimizer, portion):
            optimizer.step(**arguments)
        for bucket in portion:
            thread.submit(bucket.gather)
    thread.wait()


def may_be_portioned(optimizer: torch.optim.Optimizer) -> bool:
    """Whether several steps of some parameters each do the same as one step of all of them.

    True for torch's optimizers that can be sharded, unless there are hooks: those would be called
    several times.
    """
    has_hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return is_of_torch(type(optimizer)) and not has_hooks


def portions_of(buckets: Sequence[Bucket]) -> list[list[Bucket]]:
    """Divide buckets, in their order, into portions of similar size; the same on all ranks."""
    total = sum(bucket.plan.num_elements for bucket in buckets)
    portions: list[list[Bucket]] = [[] for _ in range(NUM_PORTIONS)]
    begin = 0
    for bucket in buckets:
        portions[begin * NUM_PORTIONS // max(total, 1)].append(bucket)
        begin += bucket.plan.num_elements
    return [portion for portion in portions if portion]


@contextlib.contextmanager
def only_pieces_of(optimizer: torch.optim.Optimizer, buckets: Sequence[Bucket]) -> Iterator[None]:
    """Restrict an optimizer to the pieces of some buckets, within a `with` block."""
    wanted = {id(own.tensor) for bucket in buckets for own in bucket.pieces}
    before = [group["params"] for group in optimizer.param_groups]
    for group, pieces in zip(optimizer.param_groups, before, strict=True):
        group["params"] = [each for each in pieces if id(each) in wanted]
    try:
        yield
    finally:
        for group, pieces in zip(optimizer.param_groups, before, strict=True):
            group["params"] = pieces


def scale_gradients(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiply the gradients of all pieces."""
    gradients = [
        piece.grad
        for group in optimizer.param_groups
        for piece in group["params"]
        if piece.grad is not None
    ]
    if gradients:
        torch._foreach_mul_(gradients, factor)
