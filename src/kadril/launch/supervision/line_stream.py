"""Turns the bytes of one stream of a rank into whole lines with a prefix.

Text is never decoded: what a rank wrote is what is printed, valid UTF-8 or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["LineStream"]

TAIL_LINES = 20
TAIL_LINE_BYTES = 2000


class LineStream:
    r"""Collects bytes until a line is whole, then emits it.

    1. What is emitted is always whole lines, each with the prefix, each ended by a newline.
    2. Lines keep their order.
    3. A progress bar, redrawn by "\r" and without a newline, would be held back to its end. So its
       last drawing is emitted as a line once it has been held for `PROGRESS_INTERVAL` seconds.
    4. A line longer than `line_limit` bytes is emitted in pieces, so that memory stays bounded.
    """

    PROGRESS_INTERVAL = 1.0

    def __init__(
        self,
        prefix: bytes | Callable[[], bytes],
        emit: Callable[[bytes], None],
        *,
        line_limit: int = 64 << 20,
    ) -> None:
        self._prefix = prefix
        self._emit = emit
        self._line_limit = line_limit
        self._held = bytearray()
        self._held_since = 0.0
        self._redrawn = False  # whether what is held has a carriage return
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)

    @property
    def tail(self) -> list[bytes]:
        """The last lines, shortened where they are very long."""
        return list(self._tail)

    @property
    def progress_due(self) -> float | None:
        """Time at which `show_progress` should be called, or None if there is no progress bar."""
        return self._held_since + self.PROGRESS_INTERVAL if self._redrawn else None

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes as they came."""
        end = data.rfind(b"\n") + 1
        if end:
            self._emit_lines(self._take_held() + data[:end])
        rest = data[end:]
        if rest:
            if not self._held:
                self._held_since = now
            self._held += rest
            self._redrawn = self._redrawn or b"\r" in rest
            if len(self._held) > self._line_limit:
                self._emit_lines(self._take_held() + b"\n")

    def show_progress(self, now: float) -> None:
        """Emit the last drawing of a progress bar that has been held for long enough."""
        due = self.progress_due
        if due is None or now < due:
            return
        drawings = [drawing for drawing in self._take_held().split(b"\r") if drawing.strip()]
        if drawings:
            self._emit_lines(drawings[-1] + b"\n")

    def close(self) -> None:
        """Emit what is left; a last line without a newline gets one."""
        if self._held:
            self._emit_lines(self._take_held() + b"\n")

    def _take_held(self) -> bytes:
        held = bytes(self._held)
        self._held.clear()
        self._redrawn = False
        return held

    def _emit_lines(self, lines: bytes) -> None:
        # One call for many lines: a loop over a million of them in Python would be the bottleneck.
        body = lines[:-1]
        for line in body.rsplit(b"\n", TAIL_LINES)[-TAIL_LINES:]:
            self._tail.append(line[:TAIL_LINE_BYTES])
        # Lines that came together have the same prefix, and the same time in it.
        prefix = self._prefix if isinstance(self._prefix, bytes) else self._prefix()
        if prefix:
            lines = prefix + body.replace(b"\n", b"\n" + prefix) + b"\n"
        self._emit(lines)
