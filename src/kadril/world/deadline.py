"""Deadlines on the monotonic clock: a jump of the wall clock neither hangs nor hurries anybody."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Backoff", "Deadline"]


class Deadline:
    """A moment `seconds` from the time it is made.

    Args:
        seconds: seconds until the deadline.
        is_cancelled: whether it has passed before its time, as nothing is left to wait for.
    """

    def __init__(self, seconds: float, is_cancelled: Callable[[], bool] | None = None) -> None:
        self._start = time.monotonic()
        self._end = self._start + seconds
        self._is_cancelled = is_cancelled

    @property
    def remaining(self) -> float:
        """Seconds left, never less than 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def elapsed(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._start

    @property
    def expired(self) -> bool:
        """Whether the moment has passed."""
        if self._is_cancelled is not None and self._is_cancelled():
            self._end = self._start
        return self.remaining == 0.0

    @property
    def look_again(self) -> float:
        """Seconds after which a wait should ask again whether the moment has passed."""
        return self.remaining if self._is_cancelled is None else min(self.remaining, 0.02)

    def shorten(self, seconds: float) -> None:
        """Move the moment to `seconds` from now, if that is earlier."""
        self._end = min(self._end, time.monotonic() + seconds)


class Backoff:
    """Growing pauses for the few waits that no descriptor announces."""

    def __init__(self, first: float = 0.001, longest: float = 0.05) -> None:
        self._pause = first
        self._longest = longest

    def sleep(self, deadline: Deadline) -> None:
        """Pause, but not past the deadline."""
        time.sleep(min(self._pause, deadline.remaining))
        self._pause = min(self._pause * 1.5, self._longest)
