"""Schedules that a forecast compares, and the network that it is made for."""

from __future__ import annotations

from dataclasses import dataclass

from kadril.transport.tiers.cost_model import (
    Schedule,
    TierSpeed,
    best_torus,
    flat_schedule,
    grid_topology,
    ring_schedule,
    tiered_schedule,
    tree_schedule,
)

__all__ = ["Network", "schedules_for"]


@dataclass(frozen=True)
class Network:
    """Network and array that a forecast is made for.

    Attributes:
        num_local: ranks on each host.
        num_bytes: of the array on each rank.
        inside: the speed inside a host.
        between: the speed between hosts.
        chunk_bytes: of an array that are under way together; as the transport has it where None.
        wire: share of the bytes that tiers send between hosts: 0.5 for bf16.
    """

    num_local: int
    num_bytes: int
    inside: TierSpeed
    between: TierSpeed
    chunk_bytes: int | None = None
    wire: float = 1.0

    @property
    def tiers(self) -> tuple[TierSpeed, TierSpeed]:
        """The speeds from the inside out."""
        return self.inside, self.between


def schedules_for(network: Network, num_hosts: int) -> list[Schedule]:
    """Return the schedules that are compared."""
    local, size = network.num_local, network.num_bytes
    tiered = tiered_schedule(
        grid_topology(num_hosts, local),
        size,
        wire=network.wire,
        chunk_bytes=network.chunk_bytes,
    )
    return [
        tiered,
        ring_schedule(num_hosts, local, size),
        ring_schedule(num_hosts, local, size, round_robin=True),
        best_tree(network, num_hosts),
        best_torus(num_hosts, local, size, network.tiers),
        flat_schedule(num_hosts, local, size),
    ]


def best_tree(network: Network, num_hosts: int) -> Schedule:
    """The tree with its best chunk size: that of our transport is not made for it."""
    sizes = [1 << power for power in range(12, 25)]
    made = [
        tree_schedule(num_hosts, network.num_local, network.num_bytes, chunk_bytes=size)
        for size in sizes
    ]
    return min(made, key=lambda schedule: schedule.seconds(network.tiers))
