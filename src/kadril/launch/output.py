"""The output of all ranks: read, kept whole, printed, and held back where the reader is slow.

    rank 0 out --> LineStream --+
    rank 1 out --> LineStream --+--> Sink (stdout)      each also --> LogFiles, as it came
    rank 0 err --> LineStream --+
    rank 1 err --> LineStream --+--> Sink (stderr)      one sink for both after `2>&1`

A congested sink stops the reading of its streams; the ranks' pipes fill and the ranks wait. Nothing
is dropped and memory stays bounded.
"""

from __future__ import annotations

import os
import selectors
import time
from functools import partial

from kadril.launch.line_stream import LineStream
from kadril.launch.log_files import LogFiles, Stream
from kadril.launch.options import RunOptions
from kadril.launch.rank_process import RankProcess
from kadril.launch.sink import Sink, same_file

__all__ = ["Output"]

STDOUT, STDERR = 1, 2
READ_BYTES = 1 << 16

# As much as the largest pipe holds: 1 MiB, unless root has raised fs.pipe-max-size.
MAX_FINAL_READS = 16


class RankStream:
    """One stream of one rank: where it comes from, and the lines it becomes."""

    def __init__(
        self, rank: int, kind: Stream, descriptor: int, lines: LineStream, sink: Sink
    ) -> None:
        self.rank = rank
        self.kind: Stream = kind
        self.descriptor = descriptor
        self.lines = lines
        self.sink = sink
        self.open = True
        self.registered = False

    def read(self) -> bytes | None:
        """Some bytes; none at the end; None when there are none at the moment."""
        try:
            return os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return None


class Output:
    """All streams of all ranks, and the two outputs of the launcher."""

    def __init__(self, selector: selectors.BaseSelector, options: RunOptions) -> None:
        self._selector = selector
        self._options = options
        self._logs = LogFiles(options)
        self._stderr = Sink(STDERR, selector, lambda reason: None)
        self._stdout = (
            self._stderr
            if same_file(STDOUT, STDERR)
            else Sink(STDOUT, selector, self._stdout_broke)
        )
        self._streams: list[RankStream] = []
        self._errors: dict[int, RankStream] = {}  # by rank

    def add(self, rank: RankProcess) -> None:
        """Take over the pipes of a rank."""
        self._streams.append(self._make_stream(rank.rank, rank.stdout, self._stdout, "out"))
        self._errors[rank.rank] = self._make_stream(rank.rank, rank.stderr, self._stderr, "err")
        self._streams.append(self._errors[rank.rank])
        self.balance()

    def _make_stream(self, rank: int, descriptor: int, sink: Sink, kind: Stream) -> RankStream:
        label = b"[%d] " % rank if self._options.prefix else b""
        prefix = partial(timestamped, label) if self._options.timestamps else lambda: label
        return RankStream(rank, kind, descriptor, LineStream(prefix, sink.write), sink)

    def notice(self, text: str) -> None:
        """Print a line of the launcher's own on stderr."""
        self._stderr.write(f"kadril: {text}\n".encode(errors="surrogateescape"))

    def print_error(self, lines: bytes) -> None:
        """Print whole lines on stderr."""
        self._stderr.write(lines)

    def error_tail(self, rank: int) -> list[bytes]:
        """Return the last lines of a rank's stderr, with all that it has written so far."""
        stream = self._errors[rank]
        for _ in range(MAX_FINAL_READS):
            if not self._pump(stream):
                break
        return stream.lines.tail

    @property
    def all_read(self) -> bool:
        """Whether every stream has come to its end."""
        return not any(stream.open for stream in self._streams)

    @property
    def all_written(self) -> bool:
        """Whether everything has been printed."""
        return self._stdout.empty and self._stderr.empty

    @property
    def progress_due(self) -> float | None:
        """When `show_progress` should be called next, or None."""
        times = [due for stream in self._streams if (due := stream.lines.progress_due) is not None]
        return min(times, default=None)

    def show_progress(self) -> None:
        """Print progress bars that have been held back for long enough."""
        now = time.monotonic()
        for stream in self._streams:
            stream.lines.show_progress(now)

    def balance(self) -> None:
        """Read from the streams whose sink keeps up, and from no others."""
        for stream in self._streams:
            wanted = stream.open and not stream.sink.congested
            if wanted and not stream.registered:
                self._selector.register(
                    stream.descriptor,
                    selectors.EVENT_READ,
                    lambda stream=stream: self._pump(stream),
                )
            elif not wanted and stream.registered:
                self._selector.unregister(stream.descriptor)
            stream.registered = wanted

    def finish_reading(self) -> None:
        """Read what is there without waiting for more; print last lines that have no newline."""
        for stream in self._streams:
            # Bounded, since a process that got away may go on writing for ever.
            for _ in range(MAX_FINAL_READS):
                if not self._pump(stream):
                    break
            stream.lines.close()

    def drop(self) -> None:
        """Give up what has not been printed."""
        self._stdout.drop()
        self._stderr.drop()

    def close(self) -> None:
        """Close the pipes and the logs; the outputs of the launcher stay open."""
        for stream in self._streams:
            self._close_stream(stream)
        self._logs.close()

    def _pump(self, stream: RankStream) -> bool:
        # True when there may be more to read at once.
        if not stream.open:
            return False
        data = stream.read()
        if data is None:
            return False
        if not data:
            self._close_stream(stream)
            return False
        stream.lines.feed(data, time.monotonic())
        complaint = self._logs.write(stream.rank, stream.kind, data)
        if complaint:
            self.notice(complaint)
        return True

    def _close_stream(self, stream: RankStream) -> None:
        if stream.registered:
            self._selector.unregister(stream.descriptor)
            stream.registered = False
        if stream.open:
            stream.open = False
            stream.lines.close()
            os.close(stream.descriptor)

    def _stdout_broke(self, reason: str) -> None:
        # Days of training are worth more than the `tee` that died: go on without it.
        self.notice(f"stdout of the launcher is gone ({reason}); the ranks go on, unseen there")


def timestamped(label: bytes) -> bytes:
    """Return a prefix with the time before it, to the second as horovodrun has it."""
    return time.strftime("%Y-%m-%d %H:%M:%S ").encode() + label
