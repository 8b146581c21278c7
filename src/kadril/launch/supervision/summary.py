"""End of a job: who failed first and why, and the exit code that follows.

When one rank dies the others soon fail too, with a lost peer. Those are *echoes*. The report must
name the rank that began it.
"""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Collection

__all__ = ["Outcome", "RankExit", "exit_code", "find_cause", "is_echo", "summarize"]

# What kadril raises on a rank whose peer has failed.
ECHO = re.compile(rb"\b(PeerLost|Revoked|TransportError)\b")

HINTS = {
    signal.SIGKILL: "if nobody sent it, the machine may have run out of memory: see `dmesg`",
    signal.SIGBUS: "often memory that is shared or mapped and cannot be had: see `df -h /dev/shm`",
    signal.SIGILL: "a library built for another processor?",
}


@dataclasses.dataclass(frozen=True)
class RankExit:
    """The end of one rank.

    Attributes:
        rank: its number.
        status: its exit code, or minus the signal that killed it.
        batch: exits that were seen at the same moment have the same batch; later ones a higher one.
        time: when it was seen, in seconds of the monotonic clock.
        stopped_by: the signal by which the launcher had tried to end it before, or 0.
        tail: the last lines of its stderr.
        host: its host, where there are several.
        lost: why nobody can say how it ended, where its host cannot be reached any more.
        last_call: of one that was killed, the last collective that it began, if any.
    """

    rank: int
    status: int
    batch: int
    time: float
    stopped_by: int
    tail: tuple[bytes, ...] = ()
    host: str = ""
    lost: str = ""
    last_call: str = ""

    @property
    def name(self) -> str:
        """Return the rank, and its host where there are several."""
        return f"rank {self.rank} on host {self.host}" if self.host else f"rank {self.rank}"

    @property
    def failed_by_itself(self) -> bool:
        """Whether it failed, and not because the launcher wanted it to end."""
        return self.status != 0 and not self.stopped_by


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of a job.

    Attributes:
        exits: the ends of the ranks, in the order in which they were seen.
        interrupted_by: the signal by which the user ended the job, or 0.
        forwarded: all signals that the launcher passed on.
        reason: why the launcher ended the job, where that is not the exit of a rank.
    """

    exits: tuple[RankExit, ...]
    interrupted_by: int = 0
    forwarded: frozenset[int] = frozenset()
    reason: str = ""


def is_echo(tail: Collection[bytes]) -> bool:
    """Whether the last lines of a rank say that it failed because another one did."""
    return any(ECHO.search(line) for line in tail)


def find_cause(outcome: Outcome) -> RankExit | None:
    """Return the exit that began the end of the job, or None if no rank failed by itself.

    The first that was seen, with two exceptions. A rank that raised an exception tells its peers
    before it has left, so an echo may be seen first. And of two that were seen at the same moment,
    one that was killed by a signal is the likelier cause.
    """
    failures = [ended for ended in outcome.exits if ended.failed_by_itself]
    return min(
        failures,
        key=lambda ended: (is_echo(ended.tail), ended.batch, ended.status > 0),
        default=None,
    )


def exit_code(outcome: Outcome) -> int:
    """Return what the launcher exits with."""
    if outcome.interrupted_by:
        return 128 + outcome.interrupted_by
    cause = find_cause(outcome)
    if cause is None:
        return 1 if outcome.reason else 0
    return cause.status if cause.status > 0 else 128 - cause.status


def summarize(outcome: Outcome) -> bytes:
    """Return the report, as whole lines; empty if all went well."""
    cause = find_cause(outcome)
    by_rank = sorted(outcome.exits, key=lambda ended: ended.rank)
    if outcome.interrupted_by:
        lines = [say(f"interrupted by {signal_name(outcome.interrupted_by)}")]
        others = [ended for ended in by_rank if ended.stopped_by == signal.SIGKILL]
    elif cause is not None:
        lines = describe_cause(cause, outcome.forwarded)
        others = [ended for ended in by_rank if ended is not cause]
    else:
        return say(outcome.reason) + b"\n" if outcome.reason else b""
    if outcome.reason:
        lines.insert(0, say(outcome.reason))
    lines += [say(f"{ended.name}: {describe_other(ended, cause)}") for ended in others]
    return b"\n".join(lines) + b"\n"


def describe_cause(cause: RankExit, forwarded: Collection[int]) -> list[bytes]:
    """Return the first failure, with the end of what the rank wrote to stderr."""
    if cause.lost:
        return [say(f"{cause.name} failed first: {cause.lost}")]
    lines = [say(f"{cause.name} failed first: {describe_status(cause.status)}")]
    if -cause.status in forwarded:
        lines.append(say("the launcher was sent that signal and passed it on"))
    elif -cause.status in HINTS:
        lines.append(say(HINTS[signal.Signals(-cause.status)]))
    if cause.last_call:
        lines.append(say(cause.last_call))
    tail = list(cause.tail)
    while tail and not tail[-1].strip():
        tail.pop()
    if tail:
        lines.append(say("the last lines of its stderr:"))
        lines += [b"    " + line for line in tail]
    else:
        lines.append(say("it wrote nothing to stderr"))
    return lines


def describe_other(ended: RankExit, cause: RankExit | None) -> str:
    """One line for a rank that is not the cause."""
    if ended.lost:
        return "its host was lost"
    if ended.stopped_by and ended.status == -ended.stopped_by:
        return f"stopped by the launcher ({signal_name(ended.stopped_by)})"
    text = describe_status(ended.status)
    if ended.status != 0 and is_echo(ended.tail):
        text += ", having lost a peer"
    if ended.stopped_by:
        text += f", after {signal_name(ended.stopped_by)} from the launcher"
    elif cause is not None and ended.batch < cause.batch:
        text += f", {cause.time - ended.time:.1f} s before that"
    return text


def describe_status(status: int) -> str:
    """Return an exit code or a signal in words."""
    if status >= 0:
        return f"exit code {status}"
    return f"killed by signal {-status} ({signal_name(-status)})"


def signal_name(signum: int) -> str:
    """Return the name of a signal: SIGKILL for 9; of a nameless real-time one its number."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def say(text: str) -> bytes:
    """Return a line of the launcher's own."""
    return f"kadril: {text}".encode()
