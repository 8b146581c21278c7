"""Bytes to whole lines, for every way to cut them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kadril.launch.supervision.line_stream import TAIL_LINE_BYTES, TAIL_LINES, LineStream

pieces = st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"a", b"\n")), max_size=30)


def collect(prefix: bytes, data: list[bytes], **settings: int) -> tuple[list[bytes], LineStream]:
    emitted: list[bytes] = []
    stream = LineStream(prefix, emitted.append, **settings)
    for piece in data:
        stream.feed(piece, now=0.0)
    stream.close()
    return emitted, stream


@given(pieces)
def test_every_line_whole_in_order_and_prefixed(data: list[bytes]) -> None:
    emitted, stream = collect(b"[3] ", data)
    text = b"".join(data)
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    assert all(part.startswith(b"[3] ") and part.endswith(b"\n") for part in emitted)
    assert b"".join(emitted) == b"".join(b"[3] " + line + b"\n" for line in lines)
    assert stream.tail == lines[-TAIL_LINES:]


@given(pieces)
def test_without_a_prefix_bytes_are_untouched(data: list[bytes]) -> None:
    emitted, _ = collect(b"", data)
    text = b"".join(data)
    assert b"".join(emitted) == (text if text.endswith(b"\n") or not text else text + b"\n")


def test_endless_line_is_cut_so_that_memory_is_bounded() -> None:
    emitted, _ = collect(b"> ", [b"x" * 60] * 10, line_limit=100)
    assert emitted == [b"> " + b"x" * 120 + b"\n"] * 5


def test_tail_is_short_even_if_lines_are_not() -> None:
    _, stream = collect(b"", [b"x" * 10_000_000 + b"\n"])
    assert stream.tail == [b"x" * TAIL_LINE_BYTES]


def test_progress_bar_shows_its_last_drawing_after_a_while() -> None:
    emitted: list[bytes] = []
    stream = LineStream(b"> ", emitted.append)
    assert stream.progress_due is None
    stream.feed(b"not a bar", now=5.0)
    assert stream.progress_due is None
    stream.feed(b"\r1 %", now=6.0)
    stream.feed(b"\r2 %\r", now=6.5)
    assert stream.progress_due == 5.0 + LineStream.PROGRESS_INTERVAL
    stream.show_progress(now=5.9)
    assert emitted == []
    stream.show_progress(now=6.5)
    assert emitted == [b"> 2 %\n"]
    assert stream.progress_due is None
    stream.feed(b"\r3 %\n", now=7.0)
    stream.close()
    assert emitted[1:] == [b"> \r3 %\n"]
