"""The kernel's knowledge of a TCP connection: `TCP_INFO` of Linux."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

__all__ = ["TcpInfo", "read_tcp_info"]

# struct tcp_info: eight single bytes, words up to 104, then longer ones among words.
NUM_BYTES = 192
PROBES = 3
SEGMENT, UNACKED, LAST_ACK = 8 + 4 * 2, 8 + 4 * 4, 8 + 4 * 12
ACKED, MIN_RTT, BUSY, WINDOW_CLOSED = 120, 148, 168, 176


class TcpInfo(NamedTuple):
    """The part of `struct tcp_info` that is used.

    Attributes:
        num_probes: unanswered probes of an idle connection.
        segment: bytes of a full packet to the other side.
        num_unacked: packets under way.
        last_ack: seconds since the other side acknowledged something.
        bytes_acked: that the other side has acknowledged so far.
        min_rtt: the shortest time from a packet to its acknowledgement, in seconds; 0 if unknown.
        busy: seconds in which bytes were under way and the other side had room for more.
    """

    num_probes: int
    segment: int
    num_unacked: int
    last_ack: float
    bytes_acked: int
    min_rtt: float
    busy: float


def read_tcp_info(sock: socket.socket) -> TcpInfo | None:
    """Ask the kernel; None where it does not know: no TCP, or another platform."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, NUM_BYTES)
    except OSError:
        return None
    if len(info) < NUM_BYTES:  # Linux before 4.10
        info = info.ljust(NUM_BYTES, b"\0")
    (segment,) = struct.unpack_from("=I", info, SEGMENT)
    (unacked,) = struct.unpack_from("=I", info, UNACKED)
    (last_ack,) = struct.unpack_from("=I", info, LAST_ACK)
    (acked,) = struct.unpack_from("=Q", info, ACKED)
    (min_rtt,) = struct.unpack_from("=I", info, MIN_RTT)
    busy, closed = struct.unpack_from("=QQ", info, BUSY)
    rtt = 0.0 if min_rtt == 2**32 - 1 else min_rtt / 1e6
    ready = (busy - closed) / 1e6
    return TcpInfo(info[PROBES], segment, unacked, last_ack / 1e3, acked, rtt, ready)
