"""Liveness of TCP connections: the kernel finds out that the other side is gone, or is back."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["set_liveness"]

TCP_RTO_MAX_MS = 44  # of Linux 6.15; Python has no name for it yet
LONGEST_PAUSE = 1.0  # seconds between two attempts to send again what was not acknowledged


def set_liveness(sock: socket.socket, timeout: float) -> None:
    """Have the kernel probe an idle connection, so that it is down within `timeout` seconds."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pause = max(1, round(timeout / 4))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, round(timeout / pause) - 1))
    # So that a link that comes back after a while is used within a second.
    with contextlib.suppress(OSError):  # an older kernel: within half the time that it was away
        sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, int(LONGEST_PAUSE * 1000))
