"""Dialer, which connects ranks for tcp; `kadril.world.connector.Connector` is one.

Written as a protocol, since a transport lies below the world and does not import it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

__all__ = ["Dialer", "nothing_to_check"]


def nothing_to_check() -> None:
    """Check nothing, where there is no group yet that could have failed."""


class Dialer(Protocol):
    """Connects ranks, wherever they are, and proves to both sides of a connection who they are.

    Attributes:
        rank: of this process in the world.
    """

    rank: int

    def dial(
        self,
        world_ranks: Sequence[int],
        label: str,
        check: Callable[[], None] = nothing_to_check,
    ) -> dict[int, socket.socket]:
        """Connect the ranks of a group with each other; all of them call it.

        Args:
            world_ranks: of all members, in the same order on all of them.
            label: of the group, unique in this world.
            check: called now and then while this rank waits for others; what it raises ends the
                wait.

        Returns:
            A connection to each other member, by world rank.

        Raises:
            RendezvousError: a rank did not come in time, or left.
        """
        ...
