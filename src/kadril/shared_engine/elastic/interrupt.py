"""Interrupt by hosts that came or went: not an error, but a reason to meet again."""

from __future__ import annotations

import enum

__all__ = ["HostUpdateResult", "HostsUpdatedInterrupt"]


class HostUpdateResult(enum.IntFlag):
    """Change of the hosts of a job; several are combined with `|`."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - reads as what happened
    """Raised by `State.commit()` and `State.check_host_updates()` where hosts came or went.

    Nothing is lost: the state is current, and `run` resumes with it once the ranks have met again.

    Attributes:
        skip_sync: whether the ranks that stay need not bring their states together, as no rank is
            new.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts of the job were updated")
        self.skip_sync = skip_sync
