"""A clock of tiers: how long a call was inside its host, and how long it waited for others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["TierClock"]

Result = TypeVar("Result")


class TierClock:
    """Adds up the seconds that one call spends in each tier.

    Exchanges between hosts are under way beside work inside the host, so the second number is what
    is left of them: the time in which a rank does nothing but wait for them.
    """

    def __init__(self) -> None:
        self._inside = 0.0
        self._across = 0.0

    def restart(self) -> None:
        """Begin with the next call."""
        self._inside = self._across = 0.0

    def inside(self, run: Callable[..., Result], *arguments: object) -> Result:
        """Call something that stays inside the host."""
        begin = time.perf_counter()
        try:
            return run(*arguments)
        finally:
            self._inside += time.perf_counter() - begin

    def across(self, run: Callable[..., Result], *arguments: object) -> Result:
        """Call something that crosses between hosts."""
        begin = time.perf_counter()
        try:
            return run(*arguments)
        finally:
            self._across += time.perf_counter() - begin

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds in each tier, by its name."""
        return {"within hosts": self._inside, "across hosts": self._across}
