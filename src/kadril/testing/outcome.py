"""Outcome of a disposable rank."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

__all__ = ["ErrorReport", "Outcome"]


@dataclasses.dataclass(frozen=True)
class ErrorReport:
    """An exception that a rank raised, as reported to another process.

    Attributes:
        type: name of its class, such as "PeerLost".
        bases: names of all its classes, so that `"PeerError" in error.bases` asks what `except`
            would.
        message: text of the error.
        fields: its attributes that are plain data, such as `fields["rank"]`.
        traceback: from the function of the test on.
    """

    type: str
    bases: tuple[str, ...]
    message: str
    fields: dict[str, Any]
    traceback: str


@dataclasses.dataclass
class Outcome:
    """Outcome of one rank. Times are CLOCK_MONOTONIC, the same for all processes of a host.

    Attributes:
        rank: in its world.
        pid: of its process.
        value: what the function returned.
        error: what it raised, or None.
        finished: when the function returned or raised; None if it did neither.
        exit_code: of a process that exited; None otherwise.
        signal: that ended the process; None otherwise.
        ended: when the process ended; None while it lives.
        stopped: whether it is stopped now, by SIGSTOP or a debugger.
        delay: seconds from the fault to the return or raise of the function; None without one of
            them.
        output: what the rank has printed.
        stacks: its stacks, where `wait` has waited for it in vain.
        marks: the labels of `mark()` that it has passed, in order.
    """

    rank: int
    pid: int = 0
    value: Any = None
    error: ErrorReport | None = None
    finished: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    ended: float | None = None
    stopped: bool = False
    delay: float | None = None
    output: str = ""
    stacks: str = ""
    marks: list[str] = dataclasses.field(default_factory=list)

    @property
    def returned(self) -> bool:
        """Whether the function returned."""
        return self.finished is not None and self.error is None

    @property
    def raised(self) -> bool:
        """Whether the function raised."""
        return self.error is not None

    @property
    def alive(self) -> bool:
        """Whether the process lives, be it stopped."""
        return self.ended is None

    @property
    def hung(self) -> bool:
        """Whether the function neither returned nor raised, in a process that could have."""
        return self.finished is None and self.alive and not self.stopped

    def __str__(self) -> str:
        if self.error is not None:
            what = f"raised {self.error.type}: {self.error.message}"
        elif self.returned:
            what = f"returned {self.value!r}"
        elif self.signal is not None:
            what = f"was killed by {signal.Signals(self.signal).name}"
        elif self.exit_code is not None:
            what = f"exited with code {self.exit_code}"
        else:
            what = "is stopped" if self.stopped else f"hangs:\n{self.stacks}"
        when = "" if self.delay is None else f" ({self.delay * 1000:.1f} ms after the fault)"
        return f"rank {self.rank} {what}{when}"
