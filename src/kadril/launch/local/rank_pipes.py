"""The pipes of the ranks of one host: read as long as whoever takes the bytes has room.

    rank 0 out --+
    rank 0 err --+--> RankPipes --> Receiver     the launcher's output, or the way to it
    rank 1 out --+

A receiver without room stops the reading; the pipes fill and the ranks wait. Nothing is dropped and
memory stays bounded.
"""

from __future__ import annotations

import os
import selectors
from functools import partial
from typing import Protocol

from kadril.launch.local.rank_process import RankProcess
from kadril.launch.supervision.log_files import Stream

__all__ = ["RankPipes", "Receiver"]

READ_BYTES = 1 << 16

# As much as the largest pipe holds: 1 MiB, unless root has raised fs.pipe-max-size.
MAX_FINAL_READS = 16


class Receiver(Protocol):
    """Takes what ranks write."""

    def receive(self, rank: int, stream: Stream, data: bytes) -> None:
        """Take some bytes, whether or not there is room."""

    def end(self, rank: int, stream: Stream) -> None:
        """Note that no more bytes come."""

    def has_room(self, stream: Stream) -> bool:
        """Whether more should come."""


class Pipe:
    """One stream of one rank."""

    def __init__(self, rank: int, stream: Stream, descriptor: int) -> None:
        self.rank = rank
        self.stream: Stream = stream
        self.descriptor = descriptor
        self.open = True
        self.registered = False


class RankPipes:
    """All pipes of the ranks of one host."""

    def __init__(self, selector: selectors.BaseSelector, receiver: Receiver) -> None:
        self._selector = selector
        self._receiver = receiver
        self._pipes: list[Pipe] = []

    def add(self, rank: RankProcess) -> None:
        """Take over the pipes of a rank."""
        self._pipes = [pipe for pipe in self._pipes if pipe.open]  # others are of replaced ranks
        self._pipes.append(Pipe(rank.rank, "out", rank.stdout))
        self._pipes.append(Pipe(rank.rank, "err", rank.stderr))
        self.balance()

    @property
    def all_read(self) -> bool:
        """Whether every stream has come to its end."""
        return not any(pipe.open for pipe in self._pipes)

    def balance(self) -> None:
        """Read from the pipes whose receiver has room, and from no others."""
        for pipe in self._pipes:
            wanted = pipe.open and self._receiver.has_room(pipe.stream)
            if wanted and not pipe.registered:
                read = partial(self._read, pipe)
                self._selector.register(pipe.descriptor, selectors.EVENT_READ, read)
            elif not wanted and pipe.registered:
                self._selector.unregister(pipe.descriptor)
            pipe.registered = wanted

    def drain_errors(self, rank: int) -> None:
        """Read all that a rank has written to stderr so far."""
        for pipe in self._pipes:
            if pipe.rank == rank and pipe.stream == "err":
                self._drain(pipe)

    def finish(self) -> None:
        """Read what is there without waiting for more."""
        for pipe in self._pipes:
            self._drain(pipe)

    def close(self) -> None:
        """Close all pipes."""
        for pipe in self._pipes:
            self._close(pipe)

    def _drain(self, pipe: Pipe) -> None:
        # Bounded, since a process that got away may keep writing for ever.
        for _ in range(MAX_FINAL_READS):
            if not self._read(pipe):
                break

    def _read(self, pipe: Pipe) -> bool:
        # True when there may be more to read at once.
        if not pipe.open:
            return False
        try:
            data = os.read(pipe.descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close(pipe)
            return False
        self._receiver.receive(pipe.rank, pipe.stream, data)
        return True

    def _close(self, pipe: Pipe) -> None:
        if pipe.registered:
            self._selector.unregister(pipe.descriptor)
            pipe.registered = False
        if pipe.open:
            pipe.open = False
            self._receiver.end(pipe.rank, pipe.stream)
            os.close(pipe.descriptor)
