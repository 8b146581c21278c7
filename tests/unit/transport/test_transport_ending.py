"""Notes that ranks leave: any text goes through, and garbage does no harm."""

from __future__ import annotations

import threading
import time

import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from kadril.transport.ending import KINDS, MAX_BYTES, Ending
from kadril.transport.store_notes import StoreNotes

ENDINGS = st.builds(
    Ending,
    kind=st.sampled_from(KINDS),
    num_completed=st.integers(0, 2**40),
    culprit=st.none() | st.integers(0, 10**6),
    reason=st.text(max_size=60),
)


@given(ending=ENDINGS)
def test_a_note_is_read_as_it_was_written(ending: Ending) -> None:
    # A lone surrogate is no text; it arrives as a question mark.
    expected = ending.reason.encode(errors="replace").decode()
    assert Ending.decode(ending.encode()) == ending._replace(reason=expected)


@given(reason=st.text(min_size=200, max_size=2000))
def test_a_long_reason_is_cut(reason: str) -> None:
    data = Ending("failed", 3, None, reason).encode()
    assert len(data) <= MAX_BYTES
    assert Ending.decode(data).num_completed == 3


@given(data=st.binary(max_size=1000))
def test_garbage_is_a_failure_without_a_culprit(data: bytes) -> None:
    ending = Ending.decode(data)
    assert ending.kind in KINDS
    assert ending.num_completed >= 0


def roll_calls(size: int) -> list[StoreNotes]:
    store = dist.HashStore()
    return [StoreNotes(store, rank, size) for rank in range(size)]


def test_who_does_not_wait_is_late() -> None:
    first, second, third = roll_calls(3)
    first.note_waiting(7)
    second.note_waiting(6)
    assert first.late(7) == [2, 1]  # the one that waits for nobody explains the other
    second.note_waiting(7)
    assert first.late(7) == [2]
    assert third.late(7) == []


def test_who_is_ahead_is_not_late() -> None:
    """A stopped rank had answered rank 0 but not rank 2, which then blamed rank 0."""
    first, _, third = roll_calls(3)
    first.note_waiting(8)
    third.note_waiting(7)
    assert third.late(7) == [1]
    assert first.late(8) == [1, 2]


def test_who_alone_says_nothing_is_dead() -> None:
    first, second, _ = roll_calls(3)
    assert first.endings() == {}
    first.note_ending(Ending("failed", 4, 1, "lost"))
    threading.Timer(0.1, lambda: second.note_ending(Ending("failed", 4, None, "lost too"))).start()
    began = time.monotonic()
    assert first.silent() == [2]  # as soon as the other has spoken
    assert time.monotonic() - began < 0.45
    assert first.endings() == {1: Ending("failed", 4, None, "lost too")}


def test_several_that_say_nothing_are_all_named() -> None:
    first, _, _ = roll_calls(3)
    assert first.silent() == [1, 2]


def test_the_first_word_counts() -> None:
    first, second = roll_calls(2)
    first.note_ending(Ending("revoked", 2, 0, "stop"))
    first.note_ending(Ending("closed", 3))
    assert second.endings() == {0: Ending("revoked", 2, 0, "stop")}
