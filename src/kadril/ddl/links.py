"""A probe of the links between hosts: how long half a megabyte takes from each host to each other.

One rank of each host, its leader, sends to the leader of another one and receives from it, in
rounds in which no host takes part twice:

    4 hosts    round 1: 0-3 1-2    round 2: 0-2 3-1    round 3: 0-1 2-3

What an exchange of nothing takes is subtracted: it is the meeting of all ranks, not the link.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kadril.transport.agreement import allgather_json
from kadril.transport.base import Message, Transport
from kadril.transport.tiers.tier_probe import pair_up
from kadril.world import Layout

__all__ = ["Link", "find_slow_link", "probe_links"]

PROBE_BYTES = 512 << 10
NUM_TRIES = 3
SLOW = 1.5  # times as slow as the links that it is compared with


class Link(NamedTuple):
    """A link between two hosts.

    Attributes:
        hosts: their places in the layout.
        seconds: that the bytes of the probe take, both ways at once.
    """

    hosts: tuple[int, int]
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second in each direction."""
        return PROBE_BYTES / max(self.seconds, 1e-9)


def probe_links(transport: Transport, layout: Layout) -> list[Link]:
    """Measure the links between all hosts; collective over all ranks."""
    leaders = [host[0] for host in layout.hosts]
    mine: list[tuple[int, int, float]] = []
    for pairs in pair_up(len(leaders)):
        partners = {leaders[a]: leaders[b] for a, b in pairs}
        partners |= {b: a for a, b in partners.items()}
        peer = partners.get(transport.rank)
        seconds = [exchange_time(transport, peer, size) for size in (0, PROBE_BYTES)]
        if peer is not None:
            a, b = leaders.index(transport.rank), leaders.index(peer)
            mine.append((min(a, b), max(a, b), max(seconds[1] - seconds[0], 1e-9)))
    told = allgather_json(transport, mine, "ddl.links")
    # Both ends have measured; the quicker one waited for nobody.
    best: dict[tuple[int, int], float] = {}
    for a, b, seconds_of_link in (each for row in told for each in row):
        best[a, b] = min(seconds_of_link, best.get((a, b), seconds_of_link))
    return [Link(pair, best[pair]) for pair in sorted(best)]


def exchange_time(transport: Transport, peer: int | None, num_bytes: int) -> float:
    """The best time of some exchanges with a peer; collective."""
    sent, received = np.zeros(num_bytes, np.uint8), np.empty(num_bytes, np.uint8)
    sends: list[Message] = [] if peer is None else [(peer, sent)]
    recvs: list[Message] = [] if peer is None else [(peer, received)]
    best = float("inf")
    for _ in range(NUM_TRIES):
        transport.barrier(name="ddl.links")
        begin = time.perf_counter()
        transport.exchange(sends, recvs, name="ddl.links")
        best = min(best, time.perf_counter() - begin)
    return best


def find_slow_link(links: Sequence[Link]) -> tuple[Link, int | None] | None:
    """The slowest link, where it stands out among the others.

    A host whose uplink is slow has no quick link at all. So the quickest link of each host shows
    its uplink, and a link that is slower than both of its uplinks is slow by itself.

    Returns:
        The link, and the host whose uplink is the cause; None for that where it is the link alone.
    """
    uplinks: dict[int, float] = {}
    for link in links:
        for host in link.hosts:
            uplinks[host] = min(link.seconds, uplinks.get(host, link.seconds))
    if len(uplinks) < 3:
        return None  # two hosts have one link: there is nothing to compare it with
    for link in sorted(links, key=lambda each: -each.seconds):
        slower = max(link.hosts, key=uplinks.__getitem__)
        if link.seconds > SLOW * uplinks[slower]:
            return link, None
        if uplinks[slower] > SLOW * statistics.median(uplinks.values()):
            return link, slower
    return None
