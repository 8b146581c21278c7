"""One of the launcher's own outputs, written without ever blocking on its reader.

A launcher that waits for `less` cannot forward a signal. Making the descriptor non-blocking is not
an option: the flag belongs to the open file, which is shared with the shell and others. So a sink
asks the kernel whether there is room, and then writes no more than is sure to fit.
"""

from __future__ import annotations

import os
import select
import selectors
import stat
from collections.abc import Callable

__all__ = ["Sink", "same_file"]


class Sink:
    """Bytes in, in order, to one descriptor.

    Attributes:
        broken: why nothing can be written any more, or an empty string. What comes later is lost.
    """

    # Beyond this, the ranks' pipes are not read until the reader has caught up.
    CONGESTED_BYTES = 1 << 20

    def __init__(
        self, descriptor: int, selector: selectors.BaseSelector, on_broken: Callable[[str], None]
    ) -> None:
        self.broken = ""
        self._descriptor = descriptor
        self._selector = selector
        self._on_broken = on_broken
        self._pending = bytearray()
        self._registered = False
        # A file or /dev/null always has room and epoll refuses it.
        mode = os.fstat(descriptor).st_mode
        self._can_be_full = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    @property
    def empty(self) -> bool:
        """Whether all that came in has gone out."""
        return not self._pending

    @property
    def congested(self) -> bool:
        """Whether the reader is so far behind that no more should come in."""
        return len(self._pending) > self.CONGESTED_BYTES

    def write(self, data: bytes) -> None:
        """Write now what fits, and the rest when there is room."""
        if self.broken:
            return
        self._pending += data
        if not self._registered:
            self._flush()

    def drop(self) -> None:
        """Give up what has not been written."""
        self._pending.clear()
        self._watch(False)

    def _flush(self) -> None:
        try:
            while self._pending and self._has_room():
                # Room in a pipe is counted in pages, and a page is never less than PIPE_BUF.
                most = select.PIPE_BUF if self._can_be_full else 1 << 20
                written = os.write(self._descriptor, bytes(self._pending[:most]))
                del self._pending[:written]
        except BlockingIOError:
            pass  # somebody else made the open file non-blocking
        except OSError as error:
            self.broken = error.strerror or str(error)
            self.drop()
            self._on_broken(self.broken)
        self._watch(bool(self._pending))

    def _has_room(self) -> bool:
        # POLLERR counts as room: the write then says what is wrong.
        return not self._can_be_full or bool(self._poll.poll(0))

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._registered:
            self._selector.register(self._descriptor, selectors.EVENT_WRITE, self._flush)
        elif not wanted and self._registered:
            self._selector.unregister(self._descriptor)
        self._registered = wanted


def same_file(one: int, other: int) -> bool:
    """Whether two descriptors lead to the same terminal, pipe or file, as after `2>&1`."""
    left, right = os.fstat(one), os.fstat(other)
    return (left.st_dev, left.st_ino) == (right.st_dev, right.st_ino)
