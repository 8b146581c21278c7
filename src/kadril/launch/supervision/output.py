"""The output of all ranks: kept whole, printed, and held back where the reader is slow.

    rank 0 out --> LineStream --+
    rank 1 out --> LineStream --+--> Sink (stdout)      each also --> LogFiles, as it came
    rank 0 err --> LineStream --+
    rank 1 err --> LineStream --+--> Sink (stderr)      one sink for both after `2>&1`

A congested sink has no room for more: `RankPipes`, here or on another host, then reads no more of
its streams, and the ranks wait.
"""

from __future__ import annotations

import selectors
import time
from functools import partial

from kadril.launch.options import RunOptions
from kadril.launch.supervision.line_stream import LineStream
from kadril.launch.supervision.log_files import LogFiles, Stream
from kadril.launch.supervision.sink import Sink, same_file

__all__ = ["Output"]

STDOUT, STDERR = 1, 2


class Output:
    """All streams of all ranks, and the two outputs of the launcher; a `Receiver`."""

    def __init__(self, selector: selectors.BaseSelector, options: RunOptions) -> None:
        self._options = options
        self._logs = LogFiles(options)
        error_sink = Sink(STDERR, selector, lambda reason: None)
        self._sinks: dict[Stream, Sink] = {
            "out": error_sink
            if same_file(STDOUT, STDERR)
            else Sink(STDOUT, selector, self._stdout_broke),
            "err": error_sink,
        }
        self._streams: dict[tuple[int, Stream], LineStream] = {
            (rank, stream): LineStream(self._prefix(rank), self._sinks[stream].write)
            for rank in range(options.num_places)
            for stream in self._sinks
        }

    def _prefix(self, rank: int) -> partial[bytes]:
        label = b"[%d] " % rank if self._options.prefix else b""
        return partial(timestamped if self._options.timestamps else bytes, label)

    def receive(self, rank: int, stream: Stream, data: bytes) -> None:
        """Print and keep what a rank wrote."""
        self._streams[rank, stream].feed(data, time.monotonic())
        complaint = self._logs.write(rank, stream, data)
        if complaint:
            self.notice(complaint)

    def end(self, rank: int, stream: Stream) -> None:
        """Print the last line of a stream, if it has no newline."""
        self._streams[rank, stream].close()

    def has_room(self, stream: Stream) -> bool:
        """Whether the reader of the launcher's output keeps up."""
        return not self._sinks[stream].congested

    def notice(self, text: str) -> None:
        """Print a line of the launcher's own on stderr."""
        self._sinks["err"].write(f"kadril: {text}\n".encode(errors="surrogateescape"))

    def print_error(self, lines: bytes) -> None:
        """Print whole lines on stderr."""
        self._sinks["err"].write(lines)

    def error_tail(self, rank: int) -> list[bytes]:
        """Return the last lines of a rank's stderr, of what has been received."""
        return self._streams[rank, "err"].tail

    @property
    def all_written(self) -> bool:
        """Whether everything has been printed."""
        return all(sink.empty for sink in self._sinks.values())

    @property
    def progress_due(self) -> float | None:
        """Time at which `show_progress` should be called next, or None."""
        times = [due for lines in self._streams.values() if (due := lines.progress_due) is not None]
        return min(times, default=None)

    def show_progress(self) -> None:
        """Print progress bars that have been held back for long enough."""
        now = time.monotonic()
        for lines in self._streams.values():
            lines.show_progress(now)

    def finish(self) -> None:
        """Print last lines that have no newline."""
        for lines in self._streams.values():
            lines.close()

    def drop(self) -> None:
        """Give up what has not been printed."""
        for sink in self._sinks.values():
            sink.drop()

    def close(self) -> None:
        """Close the logs; the outputs of the launcher stay open."""
        self._logs.close()

    def _stdout_broke(self, reason: str) -> None:
        # Days of training are worth more than the `tee` that died: continue without it.
        self.notice(f"stdout of the launcher is gone ({reason}); the ranks go on, unseen there")


def timestamped(label: bytes) -> bytes:
    """Return a prefix with the time before it, to the second as horovodrun has it."""
    return time.strftime("%Y-%m-%d %H:%M:%S ").encode() + label
