"""Sockets that a child made by fork must not keep open.

A connection tells the other side that a process is gone only when the last copy of its socket is
closed. A child that a rank has forked, such as a worker that loads data, would hold a copy of each.
"""

from __future__ import annotations

import os
import socket
import weakref

__all__ = ["close_in_children"]

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_children(sock: socket.socket) -> socket.socket:
    """Close a socket in each child that is made by fork from now on; return the socket."""
    _sockets.add(sock)
    return sock


def close_all() -> None:
    """Close the sockets of the parent in a child made by fork."""
    for sock in list(_sockets):
        sock.close()


os.register_at_fork(after_in_child=close_all)
