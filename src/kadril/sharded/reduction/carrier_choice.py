"""Choice of a carrier: once for a trainer, by what its transport can."""

from __future__ import annotations

from kadril.sharded.ownership.gradient_memory import Scale
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.carrier import Carrier
from kadril.sharded.reduction.collective_carrier import CollectiveCarrier
from kadril.sharded.reduction.communication_thread import CommunicationThread
from kadril.sharded.reduction.outbox import open_outbox
from kadril.sharded.reduction.outbox_carrier import OutboxCarrier

__all__ = ["choose_carrier"]


def choose_carrier(
    shards: Shards, scale: Scale, thread: CommunicationThread | None, *, sends_early: bool
) -> Carrier:
    """Choose how gradients travel; collective.

    Args:
        shards: parameters and their buckets.
        scale: of gradients, before and after they are added up.
        thread: reduces in the background; None where that does not pay.
        sends_early: whether gradients are sent during the backward pass.
    """
    if sends_early and all(bucket.device.type == "cpu" for bucket in shards.buckets):
        sizes = [bucket.num_bytes for bucket in shards.buckets if not bucket.plan.is_frozen]
        box = open_outbox(shards.transport, sizes)
        if box is not None:
            return OutboxCarrier(shards, scale, box)
    return CollectiveCarrier(shards, scale, thread)
