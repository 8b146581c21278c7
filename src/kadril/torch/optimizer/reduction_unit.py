"""A unit: gradients that travel in one request. Each kind of unit has a file of its own.

COLLECTING --launch()--> IN_FLIGHT --wait()--> DONE
    ^       |               ^                    |
    |       `--> HELD ------+                    |
    |            until the census                |
    +----------------- next round ---------------+
"""

from __future__ import annotations

import enum
from collections.abc import Sized
from typing import Protocol

__all__ = ["Status", "Unit"]


class Status(enum.Enum):
    """Status of a unit in the current round."""

    COLLECTING = "waits for gradients"
    HELD = "waits until all ranks know in which form it travels"
    IN_FLIGHT = "submitted"
    DONE = "every rank has the result"


class Unit(Protocol):
    """Gradients that travel in one request.

    Attributes:
        num_missing: how many of its parameters have not come in this round.
        status: where it is in this round.
    """

    num_missing: int
    status: Status

    @property
    def slots(self) -> Sized:
        """The parameters, each of which knows its unit."""
        ...

    def launch(self) -> None:
        """Submit what the parameters have as gradients; those without one count as zero."""
        ...

    def wait(self) -> None:
        """Wait for the result, and make it the parameters' gradients."""
        ...
