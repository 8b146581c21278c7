"""Task that the driver gives a job, and the answer of each rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["Answer", "Task"]


@dataclasses.dataclass(frozen=True)
class Task:
    """One measurement by one job.

    Attributes:
        engine: which engine of the job.
        collective: name of the collective.
        num_bytes: its size.
        num_calls: calls per sample, timed together.
        num_samples: how many samples to take.
        touch: whether each rank writes its array anew before each sample, outside of the timed
            part.
        pinned: whether each rank is held on one core, or may move between all.
        memory: whose allocator the arrays are from; see `engines/base.py`.
        check: whether to check the result of one call first.
    """

    engine: str
    collective: str
    num_bytes: int
    num_calls: int
    num_samples: int
    touch: bool
    pinned: bool
    memory: str = "torch"
    check: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as a message."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> Task:
        """Read it from a message."""
        return cls(**message)


@dataclasses.dataclass(frozen=True)
class Answer:
    """Answer of one rank to a task.

    Attributes:
        seconds: of one call, for each sample; empty where it failed.
        error: why it failed, or an empty string.
        idle_cpu: seconds of processor time that this process used since its last answer, when it
            had nothing to do.
        idle_wall: how long that was.
    """

    seconds: tuple[float, ...] = ()
    error: str = ""
    idle_cpu: float = 0.0
    idle_wall: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as a message."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> Answer:
        """Read it from a message."""
        return cls(**{**message, "seconds": tuple(message["seconds"])})
