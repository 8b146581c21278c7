"""The choice of the cause, for orders of exits that real processes give only by chance."""

from __future__ import annotations

import signal

import pytest

from kadril.launch.supervision.summary import Outcome, RankExit, exit_code, find_cause, summarize

LOST = (b"Traceback (most recent call last):", b"kadril.errors.PeerLost: rank 1 is gone")
OWN = (b"ValueError: the cause",)


def ended(
    rank: int, status: int, batch: int, tail: tuple[bytes, ...] = (), stopped_by: int = 0
) -> RankExit:
    return RankExit(rank, status, batch, float(batch), stopped_by, tail)


@pytest.mark.parametrize(
    ("exits", "cause"),
    [
        # Nobody failed.
        ([ended(0, 0, 0), ended(1, 0, 1)], None),
        # Ended by the launcher is not failed.
        ([ended(0, -15, 0, stopped_by=15), ended(1, 1, 0, OWN, stopped_by=15)], None),
        # The first that was seen.
        ([ended(2, 1, 0, OWN), ended(0, -9, 1)], 2),
        # Seen together: the one killed by a signal.
        ([ended(0, 1, 0, OWN), ended(1, -11, 0)], 1),
        # Seen together: the one that lost no peer.
        ([ended(0, 1, 0, LOST), ended(1, 1, 0, OWN)], 1),
        # A survivor that crashes on its way out is still an echo.
        ([ended(0, -6, 0, LOST), ended(1, 3, 1, OWN)], 1),
        # The echo was faster.
        ([ended(0, 1, 0, LOST), ended(2, 1, 1, LOST), ended(1, 1, 2, OWN)], 1),
        # Only echoes: the first of them.
        ([ended(3, 1, 0, LOST), ended(1, 1, 1, LOST)], 3),
        # Ranks that had left content are no cause.
        ([ended(1, 0, 0), ended(3, 1, 1, LOST)], 3),
        # All equal: the order in which the kernel told.
        ([ended(3, 1, 0, OWN), ended(1, 1, 0, OWN)], 3),
    ],
)
def test_cause(exits: list[RankExit], cause: int | None) -> None:
    found = find_cause(Outcome(tuple(exits)))
    assert (None if found is None else found.rank) == cause


def test_exit_codes() -> None:
    assert exit_code(Outcome((ended(0, 0, 0),))) == 0
    assert exit_code(Outcome((ended(0, 17, 0),))) == 17
    assert exit_code(Outcome((ended(0, -9, 0),))) == 137
    assert exit_code(Outcome((ended(0, 0, 0),), interrupted_by=signal.SIGINT)) == 130
    assert exit_code(Outcome((ended(0, -9, 0),), interrupted_by=signal.SIGTERM)) == 143


def test_report_keeps_bytes_and_survives_nameless_signals() -> None:
    report = summarize(Outcome((ended(0, -40, 0, (b"caf\xe9 \xff", b"", b"  ")),)))
    assert report == (
        b"kadril: rank 0 failed first: killed by signal 40 (signal 40)\n"
        b"kadril: the last lines of its stderr:\n"
        b"    caf\xe9 \xff\n"
    )
