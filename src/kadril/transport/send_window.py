"""Bytes that the kernel holds to be sent on a connection: enough for the link, and no more.

A kernel takes some megabytes of a connection, and sends as much at once as it believes the path to
hold. That belief is wrong where several ranks of a host begin to send at the same moment, and in
bursts: queues on the way run over, packets are dropped and sent again, and the rank that had bad
luck keeps all others waiting. (Four ranks of a host on a link of 100 Mbit/s with a queue of 20 ms:
bbr sent 1.6 times the bytes, and an all-reduce took between 0.56 and 0.95 s. With 64 KiB of each
connection under way it takes 0.56 to 0.58 s.)

So a connection gets room for what its link carries in a few milliseconds, or in two round trips if
they take longer, by its speed so far:

    room = max(256 KiB / connections that share the uplink, rate * max(16 ms, 2 * round trip))

A connection that is held back by its room moves all of it in one round trip, and gets twice as much
next time. It has room for several full packets in any case: the other side waits for a second one
before it acknowledges, or 40 ms. (On the loopback a packet has 64 KiB.)
"""

from __future__ import annotations

import socket

from kadril.transport.tcp_info import read_tcp_info

__all__ = ["SendWindow", "room_for"]

HOST_BYTES = 256 << 10  # under way on an uplink in any case: more than links within a site hold
LEAST_BYTES = 16 << 10  # of a connection: with less than a few packets, losses are noticed late
NUM_PACKETS = 8
# For so long a rank may be busy inside its host, or wait for a core, while the link goes on.
LEAST_SECONDS = 0.016
NUM_ROUND_TRIPS = 2
MEASURED_SECONDS = 0.02  # of sending, for a rate that a short burst does not change much
FORGETTING = 0.25  # weight of a rate that is lower than before
NEAR = 1.25  # rooms that differ by less are taken for equal


def room_for(rate: float, round_trip: float, num_sharing: int, segment: int = 0) -> int:
    """Bytes that a connection may have under way.

    Args:
        rate: bytes per second that it has carried.
        round_trip: the shortest one seen, in seconds.
        num_sharing: connections that use the uplink of this host at the same time.
        segment: bytes of a full packet.
    """
    held = rate * max(LEAST_SECONDS, NUM_ROUND_TRIPS * round_trip)
    least = max(LEAST_BYTES, NUM_PACKETS * segment)
    return max(least, HOST_BYTES // max(num_sharing, 1), int(held))


class SendWindow:
    """Adapts the send buffer of one connection to its link."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._room = 0  # as the kernel was told
        self._rate = 0.0
        info = read_tcp_info(sock)
        self._is_tcp = info is not None
        self._acked, self._busy = (info.bytes_acked, info.busy) if info else (0, 0.0)

    def adapt(self, num_sharing: int) -> None:
        """Give room by the rate so far; call it before something is sent.

        Args:
            num_sharing: see `room_for`.
        """
        info = read_tcp_info(self._socket) if self._is_tcp else None
        if info is None:
            return
        busy = info.busy - self._busy
        if busy >= MEASURED_SECONDS:
            rate = (info.bytes_acked - self._acked) / busy
            self._acked, self._busy = info.bytes_acked, info.busy
            self._rate = max(rate, self._rate + FORGETTING * (rate - self._rate))
        room = room_for(self._rate, info.min_rtt, num_sharing, info.segment)
        if not self._room / NEAR < room < self._room * NEAR:
            self._room = room
            # The kernel doubles the number, for what it keeps beside the bytes; of long packets
            # that is next to nothing. It gives no more than its `net.core.wmem_max`.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room // 2)
