"""A host with ranks, as the supervisor sees it: here, or reached by ssh.

Supervisor --+--> LocalHost                           ranks of this host
             |
             `--> RemoteHost == ssh == agent --> LocalHost    ranks of another one
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["EndedRank", "RankHost"]


class EndedRank(NamedTuple):
    """Exit of a rank, as reported by its host."""

    rank: int
    status: int  # its exit code, or minus the signal that killed it
    stopped_by: int = 0  # the signal by which the launcher had tried to end it before
    lost: str = ""  # why nobody can say how it ended
    last_call: str = ""  # of one that was killed: what its flight record ends with


class RankHost(Protocol):
    """Ranks of one host.

    Attributes:
        name: of the host; empty where there is only this one.
        has_ended: whether all is over: ranks, what they left behind, and their output.
        wake_at: when `tick` should be called next, in seconds of the monotonic clock.
    """

    name: str
    has_ended: bool
    wake_at: float

    @property
    def is_alive(self) -> bool:
        """Whether a rank lives."""

    def take_ended(self) -> list[EndedRank]:
        """Return the ranks that ended since the last call."""

    def signal(self, signum: int) -> None:
        """Pass a signal on to all ranks."""

    def stop(self, signum: int) -> None:
        """Send a signal that is meant to end all ranks."""

    def finish(self, *, at_once: bool) -> None:
        """Begin to end what the dead ranks left behind; `at_once` without waiting for it to go."""

    def tick(self) -> None:
        """Do what is due by now."""

    def balance(self) -> None:
        """Read output where there is room for it, and nowhere else."""

    def abort(self) -> None:
        """End everything now, after an error of the launcher's own."""

    def close(self) -> None:
        """Give everything back."""
