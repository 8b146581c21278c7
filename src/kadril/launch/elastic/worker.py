"""One worker of an elastic job: a process that has a rank in each generation it is part of."""

from __future__ import annotations

import os
import socket

from kadril.errors import RendezvousError
from kadril.world.job_messages import JobMessage, MessageKind, MessageReader

__all__ = ["Worker"]


class Worker:
    """A process, and the launcher's end of the connection to it.

    Attributes:
        place: its number among the workers that live, which its lines of output begin with.
        theirs: the end that the process inherits, until it has been started.
        pid: the process, once it has been started.
        rank: in the present generation; -1 where it is in none.
        is_ready: whether it waits for the next generation.
        has_state: whether it has the state of the job, and has not been dismissed.
        keeps_state: whether that is the one with which its generation ended; see `Membership`.
        listens: whether its program uses `elastic.run`.
        is_leaving: whether it is not to be in the next generation.
        fatal: why its program cannot go on, if it said so.
    """

    def __init__(self, place: int) -> None:
        self.place = place
        self._connection, self.theirs = socket.socketpair()
        self._connection.setblocking(False)
        self._reader = MessageReader(f"worker {place}")
        self.pid = 0
        self.rank = -1
        self.is_ready = False
        self.has_state = False
        self.keeps_state = False
        self.listens = False
        self.is_leaving = False
        self.was_updated = False  # told that hosts came or went, in this generation
        self.fatal = ""

    def fileno(self) -> int:
        """Descriptor that is readable when the worker has said something."""
        return self._connection.fileno()

    def send(self, kind: MessageKind, **fields: object) -> None:
        """Tell it something; one that does not read any more is about to end."""
        try:
            self._connection.send(JobMessage.of(kind, **fields).encode())
        except OSError:
            # Gone, or its buffer is full of messages that it did not read: it will be noticed by
            # its exit, or by those who wait for it.
            return

    def receive(self) -> list[JobMessage] | None:
        """Return what it has said; None where its end is closed.

        Raises:
            RendezvousError: that is no message.
        """
        try:
            data = os.read(self.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None  # it died with messages unread
        except OSError as error:
            raise RendezvousError(f"worker {self.place}: {error.strerror}") from error
        return self._reader.feed(data) if data else None

    def close(self) -> None:
        """Close both ends that are still open here."""
        self._connection.close()
        self.theirs.close()
