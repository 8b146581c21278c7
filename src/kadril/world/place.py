"""Meeting place of the ranks of a hub: a unix-domain socket on one host, or a network port."""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path
from typing import Protocol

from kadril.errors import RendezvousError
from kadril.world import inet, unix
from kadril.world.deadline import Deadline

__all__ = ["Place", "TcpPlace", "UnixPlace"]


class Place(Protocol):
    """A place where rank 0 listens and others connect. `str()` names it in messages."""

    def listen(self) -> socket.socket:
        """Listen at the meeting place, on rank 0.

        Raises:
            RendezvousError: it cannot.
        """
        ...

    def connect(self, deadline: Deadline) -> socket.socket:
        """Connect to it, and wait for it to appear.

        Raises:
            TimeoutError: nobody listened there before the deadline.
            RendezvousError: nobody ever will.
        """
        ...

    def remove(self) -> None:
        """Remove what `listen` has left besides the socket."""
        ...


@dataclasses.dataclass(frozen=True)
class UnixPlace:
    """A path of the file system."""

    path: str

    def listen(self) -> socket.socket:
        """See `Place`."""
        return unix.listen(self.path)

    def connect(self, deadline: Deadline) -> socket.socket:
        """See `Place`."""
        return unix.connect(self.path, deadline)

    def remove(self) -> None:
        """See `Place`."""
        Path(self.path).unlink(missing_ok=True)

    def __str__(self) -> str:
        return self.path


@dataclasses.dataclass(frozen=True)
class TcpPlace:
    """A port of a host.

    Attributes:
        host: name or address.
        port: of TCP.
        source: address to listen on and to connect from; where empty, what `host` and the routes
            say.
    """

    host: str
    port: int
    source: str = ""

    def listen(self) -> socket.socket:
        """See `Place`."""
        try:
            return inet.bind(self.source or self.host, self.port)
        except OSError as error:
            raise RendezvousError(
                f"rank 0 cannot listen at {self}: {os.strerror(error.errno or 0)}. It must be an"
                " address of rank 0's own host, and a free port of it"
            ) from error

    def connect(self, deadline: Deadline) -> socket.socket:
        """See `Place`."""
        return inet.connect(self.host, self.port, deadline, self.source)

    def remove(self) -> None:
        """See `Place`."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
