"""A probe of tiers: how long a message takes in each, and how many bytes go through in a second.

Inside a host all of its ranks take part. Above, one rank of each unit does, its leader, in rounds
in which no link is used twice:

    4 hosts    round 1: 0-3 1-2    round 2: 0-2 3-1    round 3: 0-1 2-3

The shortest of many messages tells the latency: the others have waited for a core. A link's rate is
told by twice as many bytes less as many: so neither the latency nor what a link lets pass at once
before it limits a rate counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

import numpy as np

from kadril.transport.agreement import allgather_json
from kadril.transport.call import Call
from kadril.transport.network_group import Packet
from kadril.transport.tiers.cost_model import TierSpeed
from kadril.transport.tiers.tier_group import TierGroup
from kadril.transport.tiers.tier_tuning import Measured, TierTuning, load, read_measured, store
from kadril.transport.tiers.topology import Topology

__all__ = ["agree_on_tuning", "leader_pairs", "measure_tiers", "pair_up"]

NUM_MESSAGES = 20
FIRST_BYTES = 128 << 10
MOST_BYTES = 16 << 20
LONG_ENOUGH = 0.05  # seconds of a transfer whose rate is taken
INSIDE_BYTES = 4 << 20
NUM_TRIES = 3


def pair_up(num_units: int) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of pairs such that every two units meet once, and none twice in a round."""
    places: list[int | None] = [*range(num_units), *([None] if num_units % 2 else [])]
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]
        places = [places[0], places[-1], *places[1:-1]]


def leader_pairs(topology: Topology) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield rounds of a probe: the tier, and the pairs of units that measure at the same time."""
    for tier, groups in enumerate(topology.tiers, 1):
        rounds: list[list[tuple[int, int]]] = []
        for group in groups:
            for number, pairs in enumerate(pair_up(len(group))):
                if number == len(rounds):
                    rounds.append([])
                rounds[number] += [(group[a], group[b]) for a, b in pairs]
        for each in rounds:
            yield tier, each


def measure_tiers(group: TierGroup) -> list[Measured]:
    """Return what this rank has measured of all tiers; collective."""
    measured = []
    inside = measure_inside(group)
    if inside is not None and group.local[0] == group.rank:
        measured.append(inside)
    call = Call("tune")
    for tier, pairs in leader_pairs(group.topology):
        units = group.topology.units(tier)
        with group._calling(call):
            group._agree(call)
            for a, b in pairs:
                first, second = units[a][0], units[b][0]
                if group.rank in (first, second):
                    is_first = group.rank == first
                    speed = measure_link(group, second if is_first else first, is_first=is_first)
                    measured.append(Measured(tier, (a, b), speed))
    return measured


def measure_inside(group: TierGroup) -> Measured | None:
    """Measure the inside of this rank's host; all its ranks call it."""
    num_local = len(group.local)
    if num_local == 1:
        return None
    short, long = np.zeros(1, np.float32), np.zeros(INSIDE_BYTES // 4, np.float32)
    seconds = []
    for array in (short, long):
        best = float("inf")
        for _ in range(NUM_MESSAGES if array is short else NUM_TRIES):
            begin = time.perf_counter()
            group.inner.allreduce(array)
            best = min(best, time.perf_counter() - begin)
        seconds.append(best)
    # A reduce-scatter and an all-gather: a rank moves all but its own part in each.
    moved = 2 * INSIDE_BYTES * (1 - 1 / num_local)
    rate = moved / max(seconds[1] - seconds[0], 1e-9)
    return Measured(0, (group.host, group.host), TierSpeed(rate, seconds[0] / 2))


def measure_link(group: TierGroup, peer: int, *, is_first: bool) -> TierSpeed:
    """Measure the link to the leader of another unit, which calls it too."""
    word = np.zeros(8, np.uint8)
    best, busy = float("inf"), time.process_time()
    for _ in range(NUM_MESSAGES):
        begin = time.perf_counter()
        for sends in (is_first, not is_first):
            carry(group, [(peer, word)] if sends else [], [] if sends else [(peer, word)])
        best = min(best, time.perf_counter() - begin)
    overhead = (time.process_time() - busy) / (2 * NUM_MESSAGES)
    rate, byte_cost = measure_rate(group, peer)
    return TierSpeed(rate, best / 2, overhead, byte_cost)


def measure_rate(group: TierGroup, peer: int) -> tuple[float, float]:
    """Bytes per second in each direction, and processor seconds of this rank per byte."""
    num_bytes, before = FIRST_BYTES, 0.0
    while True:
        sent = np.zeros(num_bytes, np.uint8)
        received = np.empty_like(sent)
        begin, busy = time.perf_counter(), time.process_time()
        carry(group, [(peer, sent)], [(peer, received)])
        seconds = time.perf_counter() - begin
        cost = (time.process_time() - busy) / (2 * num_bytes)
        # Both ends must stop alike, so both go by the longer time.
        told = np.array([seconds], np.float64).view(np.uint8)
        heard = np.empty_like(told)
        carry(group, [(peer, told)], [(peer, heard)])
        seconds = max(seconds, float(heard.view(np.float64)[0]))
        if seconds > LONG_ENOUGH or num_bytes >= MOST_BYTES:
            gained = seconds - before
            # A disturbance of the shorter transfer may make the longer one look like nothing.
            rate = (
                num_bytes / 2 / gained if before and gained > seconds / 4 else num_bytes / seconds
            )
            return rate, cost
        num_bytes, before = 2 * num_bytes, seconds


def carry(group: TierGroup, sends: Sequence[Packet], recvs: Sequence[Packet]) -> None:
    """Move packets between two leaders."""
    group._start_exchange(sends, recvs)()


def agree_on_tuning(group: TierGroup, *, again: bool) -> TierTuning:
    """Return what is known of the hosts of a group; measure them where nothing is. Collective.

    Args:
        group: all ranks.
        again: measure even where something is known.
    """
    names = host_names(group)
    outer_kind = group.outer.kind
    is_main = group.rank == 0
    known = load(names, group.topology, outer_kind) if is_main and not again else None
    told = allgather_json(group, None if known is None else known.to_json(), "tune")[0]
    if told is None:
        found = allgather_json(group, measure_tiers(group), "tune")
        measured = [read_measured(each) for row in found for each in row]
        made = TierTuning.of(names, group.topology, measured, len(os.sched_getaffinity(0)))
        # By the cores of rank 0's host, for all: what all choose must be the same.
        told = allgather_json(group, made.to_json() if is_main else None, "tune")[0]
        if is_main:
            store(made, outer_kind)
    return TierTuning.from_json(told)


def host_names(group: TierGroup) -> list[str]:
    """The name of each host; its number where names are not known."""
    return [
        group.hostnames[group.world_ranks[host[0]]] if group.hostnames else f"host {index}"
        for index, host in enumerate(group.topology.hosts)
    ]
