"""Time that survivors take from a fault to their error, where the rank that fails tells when.

A death is told by whoever reaps the rank, which may be later than the ranks hear of it; an exit, or
an error, is told by nobody. Times are taken where they are: in the rank that fails, right before,
and in each survivor. So a busy machine counts only as far as it holds up these.
"""

from __future__ import annotations

import time

from kadril.testing import faults
from kadril.testing.outcome import Outcome

__all__ = ["check_delays", "note_fault"]

LABEL = "fault at "


def note_fault() -> None:
    """Say, in the rank that is about to fail, when that is."""
    faults.mark(f"{LABEL}{time.monotonic()!r}")


def check_delays(outcomes: list[Outcome], bound: float) -> None:
    """Fail unless the others have raised within so many seconds of the first fault."""
    told = {
        outcome.rank: float(mark.removeprefix(LABEL))
        for outcome in outcomes
        for mark in outcome.marks
        if mark.startswith(LABEL)
    }
    assert told, "no rank has told of a fault"
    for outcome in outcomes:
        if outcome.rank not in told:
            assert outcome.error is not None, outcome
            assert outcome.finished is not None
            outcome.delay = outcome.finished - min(told.values())
            assert outcome.delay < bound, f"took {outcome.delay:.3f} s: {outcome}"
