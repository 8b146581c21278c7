"""A proxy between ranks that treats their bytes badly: resets, delays, single bytes, silence."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

RESET_AT_ONCE = struct.pack("ii", 1, 0)
TARGET = struct.Struct("!H")  # what a client says first: the port it wants to reach


class FaultyProxy:
    """Forwards connections of this host, and does to their bytes what its fields say.

    Attributes:
        chunk: bytes that are written at a time.
        reset_after: bytes of one direction after which both ends are reset; 0 for never.
        silent_after: bytes of one direction after which nothing is forwarded any more, while both
            ends stay open; 0 for never.
        pause_after: bytes of one direction after which there is one pause of `pause` seconds.
    """

    def __init__(self) -> None:
        self.chunk = 1 << 16
        self.reset_after = 0
        self.silent_after = 0
        self.pause_after = 0
        self.pause = 0.0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sockets: list[socket.socket] = []
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                try:
                    (port,) = TARGET.unpack(client.recv(TARGET.size, socket.MSG_WAITALL))
                    server = socket.create_connection(("127.0.0.1", port))
                except (OSError, struct.error):
                    # Nobody listens there yet, or the client is gone; the next one may fare better.
                    client.close()
                    continue
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.sockets += [client, server]
                for ends in ((client, server), (server, client)):
                    self.threads.append(
                        threading.Thread(target=self.forward, args=ends, daemon=True)
                    )
                    self.threads[-1].start()

    def forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            num_bytes, has_paused = 0, False
            while data := source.recv(self.chunk):
                num_bytes += len(data)
                if self.silent_after and num_bytes > self.silent_after:
                    continue
                if self.pause_after and num_bytes > self.pause_after and not has_paused:
                    has_paused = True
                    time.sleep(self.pause)
                if self.reset_after and num_bytes > self.reset_after:
                    target.sendall(data[: len(data) // 2])
                    reset(source, target)
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)  # also wakes the thread that waits in accept()
        self.listener.close()
        self.threads[0].join()
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for sock in self.sockets:
            sock.close()


def reset(*sockets: socket.socket) -> None:
    """End connections by RST."""
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_ONCE)
        # Another thread may wait in recv(): without this, its use keeps the connection open.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RD)
        sock.close()


@contextlib.contextmanager
def faulty_proxy() -> Iterator[FaultyProxy]:
    proxy = FaultyProxy()
    try:
        yield proxy
    finally:
        proxy.close()


def connect_through(proxy_port: int) -> None:
    """Have this process reach every port of this host through a proxy."""
    from kadril.world import inet

    direct = inet.connect_once

    def connect(host: str, port: int, timeout: float, source: str) -> socket.socket:
        sock = direct(host, proxy_port, timeout, source)
        sock.sendall(TARGET.pack(port))
        return sock

    inet.connect_once = connect
