"""A deadline with the message for when it is missed."""

from __future__ import annotations

import time

__all__ = ["Timeout", "TimeoutException"]


class TimeoutException(Exception):  # noqa: N818 - Horovod's name
    """A deadline was missed."""


class Timeout:
    """A deadline, counted from when the object is made.

    Args:
        timeout: seconds until it.
        message: of the exception; "{activity}" and "{timeout}" are filled in.
    """

    def __init__(self, timeout: float, message: str) -> None:
        self._seconds = timeout
        self._message = message
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Whether the deadline is over."""
        return self.remaining() == 0

    def check_time_out_for(self, activity: str) -> None:
        """Raise `TimeoutException` if the deadline is over."""
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._seconds))
