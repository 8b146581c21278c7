"""A deadline with words for the day it is missed."""

from __future__ import annotations

import time

__all__ = ["Timeout", "TimeoutException"]


class TimeoutException(Exception):  # noqa: N818 - Horovod's name
    """A deadline was missed."""


class Timeout:
    """So many seconds, counted from the moment it is made.

    Args:
        timeout: the seconds.
        message: what is said when they are over; "{activity}" and "{timeout}" are filled in.
    """

    def __init__(self, timeout: float, message: str) -> None:
        self._seconds = timeout
        self._message = message
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """Seconds that are left, never less than 0."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Whether none are left."""
        return self.remaining() == 0

    def check_time_out_for(self, activity: str) -> None:
        """Raise `TimeoutException` if none are left."""
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._seconds))
