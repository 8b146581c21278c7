"""Figures of this machine for the cost model, each measured by itself: none is fitted.

calibration      what is measured                                             used for
byte_cost        processor seconds to send or receive a byte between hosts    tier 1
overhead         processor seconds of a short message                         tier 1
latency          half of the shortest round trip                              tier 1
memory           bytes per second that a rank copies, all cores at it         tier 0
wake_up          half of the shortest round trip through a pipe               tier 0

python calibration.py serve | connect ADDRESS          one end of the connection, in a host
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["calibrate"]

PORT = 29400
NUM_MESSAGES = 200
NUM_BYTES = 64 << 20
PIECE = 1 << 20
COPIED = 16 << 20


def calibrate() -> dict[str, float]:
    """Measure on two hosts whose link has no limit."""
    from kadril.testing.host_network import hosts

    with hosts(2, ssh=False) as net:
        words = [sys.executable, Path(__file__).resolve()]
        server = net.hosts[0].popen([*words, "serve"], stdout=subprocess.PIPE)
        assert server.stdout is not None
        server.stdout.readline()  # it listens
        told = net.hosts[1].run([*words, "connect", net.hosts[0].address])
        ends = [json.loads(told.stdout), json.loads(server.stdout.read())]
        server.wait()
    return {
        "byte_cost": sum(end["byte_cost"] for end in ends) / 2,
        "overhead": sum(end["overhead"] for end in ends) / 2,
        "latency": ends[0]["latency"],
        "memory": copy_rate(),
        "wake_up": wake_up(),
    }


def copy_rate() -> float:
    """Bytes per second that one of as many threads as cores copies."""

    def copy() -> None:
        source, target = np.ones(COPIED, np.uint8), np.empty(COPIED, np.uint8)
        best = float("inf")
        for _ in range(10):
            begin = time.perf_counter()
            np.copyto(target, source)
            best = min(best, time.perf_counter() - begin)
        rates.append(COPIED / best)

    rates: list[float] = []
    threads = [threading.Thread(target=copy) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(rates)


def wake_up() -> float:
    """Half of the shortest round trip between two processes."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        for _ in range(NUM_MESSAGES):
            theirs.send(theirs.recv(8))
        os._exit(0)
    best = float("inf")
    for _ in range(NUM_MESSAGES):
        begin = time.perf_counter()
        ours.send(bytes(8))
        ours.recv(8)
        best = min(best, time.perf_counter() - begin)
    os.wait()
    return best / 2


def measure_end(link: socket.socket, *, is_first: bool) -> dict[str, Any]:
    """Bounce short messages, then send and receive long ones at the same time."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    best, busy = float("inf"), time.process_time()
    for _ in range(NUM_MESSAGES):
        begin = time.perf_counter()
        if is_first:
            link.sendall(bytes(8))
        link.recv(8, socket.MSG_WAITALL)
        if not is_first:
            link.sendall(bytes(8))
        best = min(best, time.perf_counter() - begin)
    overhead = (time.process_time() - busy) / (2 * NUM_MESSAGES)
    busy = time.process_time()
    sender = threading.Thread(target=send_all, args=(link,))
    sender.start()
    piece, left = memoryview(bytearray(PIECE)), NUM_BYTES
    while left:
        left -= link.recv_into(piece[: min(left, PIECE)])
    sender.join()
    byte_cost = (time.process_time() - busy) / (2 * NUM_BYTES)
    return {"latency": best / 2, "overhead": overhead, "byte_cost": byte_cost}


def send_all(link: socket.socket) -> None:
    """Send the long message."""
    piece = bytes(PIECE)
    for _ in range(NUM_BYTES // PIECE):
        link.sendall(piece)


def main(what: str, *address: str) -> None:
    """Be one end of the connection."""
    if what == "serve":
        with socket.create_server(("", PORT)) as server:
            print("ready", flush=True)
            link, _ = server.accept()
    else:
        link = socket.create_connection((address[0], PORT))
    with link:
        print(json.dumps(measure_end(link, is_first=what != "serve")), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
