"""A world of one: nothing moves, and everything else is as in any other group.

Arguments are checked, scales are applied and results are copied as they would be among many ranks,
so a program that runs alone has met every rule that it will meet in company.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from kadril.config import Config
from kadril.errors import KadrilError
from kadril.transport.base import Transport
from kadril.transport.buffer import Memory
from kadril.transport.network_group import Packet
from kadril.transport.network_transport import NetworkTransport

__all__ = ["AloneTransport", "group_of_one"]


class AloneTransport(NetworkTransport):
    """A group of one rank."""

    kind = "alone"
    overlaps = False
    reaches_devices = True

    def __init__(self, world_rank: int = 0, config: Config | None = None) -> None:
        super().__init__(0, 1, (world_rank,), config or Config())

    def _subgroup(self, members: Sequence[int], label: str, number: int) -> AloneTransport:
        return AloneTransport(self.world_ranks[0], self.config)

    def _meet(self, record: Memory) -> NoReturn:
        raise AssertionError("there is nobody to meet")

    def _start_exchange(self, sends: Sequence[Packet], recvs: Sequence[Packet]) -> NoReturn:
        raise AssertionError("there is nobody to exchange with")

    def _leave(self, failure: KadrilError | None) -> None:
        pass


def group_of_one(world_rank: int) -> Transport:
    """Return a group that has no rank but this one."""
    return AloneTransport(world_rank)
