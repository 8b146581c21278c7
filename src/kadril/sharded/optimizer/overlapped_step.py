"""The step of the optimizer, and giving all ranks what it has written.

Where ranks share parameters they only have to meet. Elsewhere each gathers what the others have
stepped, bucket by bucket; a network mostly waits, so that goes on beside the rest of the step:

    step      | some buckets | some more | some more |
    courier                  | gather    | gather    | gather | wait
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kadril.sharded.optimizer.optimizers import is_of_torch
from kadril.sharded.ownership.bucket import Bucket
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.courier import Courier

__all__ = ["scale_gradients", "step_and_publish"]

# Each portion is a call of the optimizer, and the first gather begins after the first of them.
NUM_PORTIONS = 4


def step_and_publish(
    optimizer: torch.optim.Optimizer,
    shards: Shards,
    courier: Courier | None,
    arguments: Mapping[str, Any],
) -> None:
    """Step this rank's pieces, and let all ranks have them; collective.

    Args:
        optimizer: of the pieces.
        shards: all parameters.
        courier: gathers beside the step; None where that does not pay.
        arguments: of the optimizer's step.
    """
    has_shared = any(bucket.is_shared for bucket in shards.buckets)
    if courier is None or has_shared or not may_be_portioned(optimizer):
        optimizer.step(**arguments)
        shards.publish()
        return
    for portion in portions_of(shards.buckets):
        with only_pieces_of(optimizer, portion):
            optimizer.step(**arguments)
        for bucket in portion:
            courier.submit(bucket.gather)
    courier.wait()


def may_be_portioned(optimizer: torch.optim.Optimizer) -> bool:
    """Whether several steps of some parameters each are as one of all of them.

    So it is with those that torch has and that can be sharded at all. But a hook would be called
    each time.
    """
    has_hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return is_of_torch(type(optimizer)) and not has_hooks


def portions_of(buckets: Sequence[Bucket]) -> list[list[Bucket]]:
    """Buckets in their order, in portions of about the same size; alike on all ranks."""
    total = sum(bucket.plan.num_elements for bucket in buckets)
    portions: list[list[Bucket]] = [[] for _ in range(NUM_PORTIONS)]
    begin = 0
    for bucket in buckets:
        portions[begin * NUM_PORTIONS // max(total, 1)].append(bucket)
        begin += bucket.plan.num_elements
    return [portion for portion in portions if portion]


@contextlib.contextmanager
def only_pieces_of(optimizer: torch.optim.Optimizer, buckets: Sequence[Bucket]) -> Iterator[None]:
    """Let an optimizer see only the pieces in some buckets."""
    wanted = {id(own.tensor) for bucket in buckets for own in bucket.pieces}
    before = [group["params"] for group in optimizer.param_groups]
    for group, all_of_them in zip(optimizer.param_groups, before, strict=True):
        group["params"] = [each for each in all_of_them if id(each) in wanted]
    try:
        yield
    finally:
        for group, all_of_them in zip(optimizer.param_groups, before, strict=True):
            group["params"] = all_of_them


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
