"""A link between the driver and one rank: a line of JSON each way.

The socket has an abstract address: there is no file that could be left behind. Anybody on the host
could connect to one, so both ends look at whose process is on the other.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import time
from typing import Any

from kadril.errors import KadrilError

__all__ = ["Link", "LinkLost", "connect", "listen", "make_address"]

PEER_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: `struct ucred`
CONNECT_TIMEOUT = 30.0


class LinkLost(KadrilError):  # noqa: N818 - reads as what happened
    """The other end is gone, or silent for too long."""


class Link:
    """One end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._text = b""

    def fileno(self) -> int:
        """Return the descriptor, to wait on."""
        return self.sock.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            LinkLost: the other end is gone.
        """
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise LinkLost(f"the other end of the link is gone ({error})") from None

    def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """Return the next message; blocks in the kernel until it is there.

        Raises:
            LinkLost: the other end is gone, or was silent for `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._text:
            if deadline is not None:
                self.sock.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                piece = self.sock.recv(1 << 16)
            except TimeoutError:
                raise LinkLost(f"no answer within {timeout:g} s") from None
            except OSError as error:
                raise LinkLost(f"the other end of the link is gone ({error})") from None
            if not piece:
                raise LinkLost("the other end of the link is gone")
            self._text += piece
        line, _, self._text = self._text.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Close this end."""
        self.sock.close()


def make_address() -> str:
    """Return an address that nobody else has."""
    return f"kadril-bench-{secrets.token_hex(16)}"


def listen(address: str) -> socket.socket:
    """Return the driver's socket, where ranks connect."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(b"\0" + address.encode())
    sock.listen(256)
    return sock


def connect(address: str) -> Link:
    """Return a rank's link to the driver.

    Raises:
        LinkLost: the driver is gone, or it is a process of another user.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_TIMEOUT)
        sock.connect(b"\0" + address.encode())
        sock.settimeout(None)
    except OSError as error:
        sock.close()
        raise LinkLost(f"the driver is gone ({error})") from None
    if not is_own(sock):
        sock.close()
        raise LinkLost("the driver is a process of another user")
    return Link(sock)


def is_own(sock: socket.socket) -> bool:
    """Whether the process at the other end is one of this user."""
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    uid: int = PEER_CREDENTIALS.unpack(packed)[1]
    return uid == os.geteuid()
