"""Reports of failures on ranks."""

from __future__ import annotations

from kadril.testing import RanksFailed
from kadril.testing.failure import Report, describe, name_ranks


def failed(rank: int, summary: str, at: float = 0.0) -> Report:
    return Report(rank, "failed", summary=summary, text=f"Traceback\n{summary}\n", at=at)


def test_ranks_are_named_in_order() -> None:
    assert name_ranks([2]) == "rank 2"
    assert name_ranks([3, 0, 1]) == "ranks 0, 1, 3"


def test_what_ranks_have_in_common_is_told_once() -> None:
    reports = [failed(rank, "ValueError: bad") for rank in (0, 1, 3)]
    text = describe([*reports, failed(2, "ValueError: worse", at=1.0)])
    assert text.count("ValueError: bad") == 2  # the summary, and the end of the traceback
    assert text.splitlines()[0] == "ranks 0, 1, 3: ValueError: bad"
    assert "rank 2: ValueError: worse" in text


def test_who_failed_first_is_told_first() -> None:
    """Rank 0 raised PeerLost because rank 1 had failed: the cause belongs on top."""
    text = describe([failed(0, "PeerLost: rank 1", at=20.0), failed(1, "KeyError: 'x'", at=10.0)])
    assert text.index("rank 1: KeyError") < text.index("rank 0: PeerLost")


def test_those_who_did_not_fail_are_mentioned() -> None:
    reports = [
        Report(0, "passed"),
        failed(1, "ValueError"),
        Report(2, "skipped", text="no luck"),
    ]
    assert describe(reports).splitlines()[-3:] == [
        "rank 0: passed",
        "",
        "rank 2: skipped (no luck)",
    ]


def test_the_error_has_the_reports_by_rank() -> None:
    error = RanksFailed([Report(0, "passed"), Report(1, "died", summary="the process was killed")])
    assert [error.reports[rank].is_failure for rank in (0, 1)] == [False, True]
    assert "rank 1: the process was killed" in str(error)
