"""The time of an all-reduce by a model: steps and bytes of a schedule against the speed of tiers.

A schedule is a list of phases. In a phase, ranks take steps that wait for each other; each rank
sends messages, and bytes go through the busiest link of the tier, in each direction:

    seconds = steps * latency + messages * overhead + bytes / bandwidth

The processors of a host do the work of all its ranks: so much for each message, and so much for
each byte that they send or receive.

An array is cut into chunks, and chunks that are in different tiers do not disturb each other:

    inside a host     |1|2|3|4|   |1| |2| |3| |4|
    between hosts       | 1 | 2 | 3 | 4 |              the slower tier has the last word

So the whole takes as long as one chunk takes through all phases, and then as long as the slowest
resource (the links of one tier, or the processor) takes for all other chunks. Schedules that are
not cut into chunks go through phase by phase.

What the model leaves out: time to add (it is in the bandwidth inside a host), links inside the
network that carry less than all hosts send (give such a network a tier more), and noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kadril.transport.tiers.tier_plan import (
    CHUNK_BYTES,
    Sum,
    TierPlan,
    Way,
    make_plan,
    sum_chunk_bytes,
)
from kadril.transport.tiers.topology import Topology

__all__ = [
    "Phase",
    "Schedule",
    "TierSpeed",
    "best_torus",
    "flat_schedule",
    "grid_topology",
    "least_seconds",
    "ring_schedule",
    "tiered_schedule",
    "torus_schedule",
    "tree_schedule",
]


class TierSpeed(NamedTuple):
    """Speed of a tier.

    Attributes:
        bandwidth: bytes per second and direction: of a rank inside a host, while all of the host
            move as much; of the uplink of a host, or of a group of hosts, above.
        latency: seconds from the start of a step until its first byte arrives.
        overhead: seconds of a rank's processor per message.
        byte_cost: seconds of a processor per byte that is sent, and per byte that is received.
    """

    bandwidth: float
    latency: float
    overhead: float = 0.0
    byte_cost: float = 0.0


class Phase(NamedTuple):
    """A part of a schedule that moves bytes of one tier.

    Attributes:
        tier: 0 inside a host, 1 between hosts, 2 between groups of hosts, ...
        num_steps: that wait for each other.
        num_messages: that a rank sends, for each chunk.
        num_bytes: through the busiest link of the tier, in each direction; of the whole array.
        depth: how many ranks pass a chunk on, one after the other, as long as it takes each time.
    """

    tier: int
    num_steps: int
    num_messages: int
    num_bytes: float
    depth: int = 1


@dataclass(frozen=True)
class Schedule:
    """An all-reduce.

    Attributes:
        name: shown to people.
        phases: phases of it, in their order.
        num_chunks: into which the array is cut; 1 where phases do not overlap.
        num_local: ranks of a host, which share its processors.
    """

    name: str
    phases: tuple[Phase, ...]
    num_chunks: int = 1
    num_local: int = 1

    def seconds(self, tiers: Sequence[TierSpeed], cores: float | None = None) -> float:
        """Time of the all-reduce.

        Args:
            tiers: the speed of each tier, from that inside a host on.
            cores: processors of a host; one for each rank where None. Less than one where several
                hosts are on one machine.
        """
        waiting = first_chunk = messages = handling = 0.0
        moving = [0.0] * len(tiers)
        crowd = max(1.0, self.num_local / cores) if cores else 1.0
        for phase in self.phases:
            speed = tiers[phase.tier]
            on_link = phase.num_bytes / speed.bandwidth / self.num_chunks
            sent = phase.num_bytes / self.num_local / self.num_chunks if phase.tier else 0.0
            on_core = 2 * sent * speed.byte_cost * crowd  # as many bytes are received
            waiting += phase.num_steps * speed.latency
            messages += phase.num_messages * speed.overhead * crowd
            handling += on_core
            # A core handles the next bytes while the link carries these.
            first_chunk += max(on_link, on_core) * phase.depth
            moving[phase.tier] += on_link
        # What stays inside a host is moved by its processors too, and by nobody else.
        processor = messages + handling + moving[0] * crowd
        return waiting + first_chunk + messages + (self.num_chunks - 1) * max(*moving, processor)

    def uplink_bytes(self, tier: int = 1) -> float:
        """Bytes through the busiest link of a tier, in each direction."""
        return sum(phase.num_bytes for phase in self.phases if phase.tier == tier)


def tiered_schedule(
    topology: Topology,
    num_bytes: int,
    *,
    wire: float = 1.0,
    chunk_bytes: int | None = None,
    way: Way = "shares",
) -> Schedule:
    """The schedule of the tiered transport, read off its plan.

    Args:
        topology: whose ranks take part.
        num_bytes: of the array.
        wire: share of the bytes that cross between hosts: 0.5 for float32 sent as bf16.
        chunk_bytes: of the array that are under way together; as the transport has it where None.
        way: see `make_plan`.
    """
    if chunk_bytes is None:
        chunk_bytes = sum_chunk_bytes(num_bytes, len(topology.hosts), is_rounded=wire < 1)
    plan = make_plan(topology, num_bytes, way)
    # A rank of the host with the most of them sends, and then gets, all but its own part; a leader
    # reads all of the others, which then read its result.
    num_local = max(map(len, topology.hosts))
    leads = way == "leaders"
    moved = num_bytes * (num_local - 1) / (1 if leads else num_local)
    within = Phase(0, min(num_local - 1, 1), num_local - 1, moved)
    after = within._replace(num_bytes=min(moved, num_bytes))
    outward, backward = [], []
    for tier, sums in enumerate(plan.steps, 1):
        sent, returned = step_bytes(plan, tier, sums)
        num_peers = max((len(each.sources) - 1 for each in sums), default=0)
        outward.append(Phase(tier, 1, num_peers, sent * wire))
        if returned:
            backward.append(Phase(tier, 1, num_peers, returned * wire))
    num_chunks = max(1, math.ceil(num_bytes / chunk_bytes))
    phases = (within, *outward, *reversed(backward), after)
    # Where leaders send, the others of a host have nothing to do.
    return Schedule("tiered", phases, num_chunks, 1 if leads else num_local)


def step_bytes(plan: TierPlan, tier: int, sums: Sequence[Sum]) -> tuple[int, int]:
    """Elements of partial sums, and of sums on their way back, through the busiest link of a tier.

    Counts of whole sums, and not of transfers, of which large plans have millions.
    """
    units = plan.topology.units(tier)
    unit_of = {rank: index for index, unit in enumerate(units) for rank in unit}
    groups = plan.topology.tiers[tier - 1]
    group_of = {unit: index for index, group in enumerate(groups) for unit in group}
    whole = [0] * len(groups)  # every unit sends it to all others, where all add
    total = [0] * len(groups)  # of sums that one unit adds: every other one sends it once
    own = [0] * len(units)  # of those, what this unit adds
    collected = [0] * len(units)  # what this unit gets for that
    for each in sums:
        size, num_peers = each.end - each.begin, len(each.sources) - 1
        unit = unit_of[each.owners[0]]
        if len(each.owners) > 1:
            whole[group_of[unit]] += size * num_peers
        else:
            total[group_of[unit]] += size
            own[unit] += size
            collected[unit] += size * num_peers
    # What is sent on the way out is received on the way back, and the reverse.
    shares = [max(total[group_of[unit]] - own[unit], collected[unit]) for unit in range(len(units))]
    sent = max(whole[group_of[unit]] + share for unit, share in enumerate(shares))
    return sent, max(shares)


def ring_schedule(
    num_hosts: int, num_local: int, num_bytes: float, *, round_robin: bool = False
) -> Schedule:
    """A ring of all ranks: reduce-scatter and all-gather, each in P - 1 steps.

    Of contiguous ranks one edge of the ring leaves each host; of ranks dealt out round robin all.
    """
    num_ranks = num_hosts * num_local
    num_steps = 2 * (num_ranks - 1)
    edges = num_local if round_robin else 1
    name = "ring, round robin" if round_robin else "ring"
    tier = 1 if num_hosts > 1 else 0
    sent = num_steps * num_bytes / num_ranks * (edges if tier else 1)
    return Schedule(name, (Phase(tier, num_steps, num_steps, sent),))


def tree_schedule(
    num_hosts: int, num_local: int, num_bytes: float, *, chunk_bytes: int = CHUNK_BYTES
) -> Schedule:
    """Two binary trees over hosts, each for half of the array, and a chain of ranks in each host.

    A host is a leaf of one tree and has two children in the other. So, up and down together, it
    sends half the array once as a leaf, and three times to its parent and its children: 2 n bytes.
    """
    depth = math.ceil(math.log2(num_hosts + 1)) if num_hosts > 1 else 0
    within = Phase(0, num_local - 1, 1, num_bytes if num_local > 1 else 0, num_local - 1)
    between = Phase(1, 2 * depth, 6, 2 * num_bytes if num_hosts > 1 else 0, depth)
    num_chunks = max(1, math.ceil(num_bytes / chunk_bytes))
    return Schedule("tree", (within, between, within), num_chunks)


def torus_schedule(num_hosts: int, num_local: int, num_bytes: float, width: int) -> Schedule:
    """A 2D-torus: reduce-scatter along rows, all-reduce along columns, all-gather along rows.

    Rings all of them. A row of `width` ranks is a host, or several whole hosts.

    Raises:
        ValueError: rows are not whole hosts, or do not divide the ranks.
    """
    num_ranks = num_hosts * num_local
    if width % num_local or num_ranks % width:
        raise ValueError(
            f"rows of {width} ranks are no whole hosts of {num_local}, or do not divide {num_ranks}"
        )
    height = num_ranks // width
    tier = 1 if width > num_local else 0
    along_row = Phase(tier, width - 1, width - 1, (width - 1) / width * num_bytes)
    steps = 2 * (height - 1)
    # Every rank of a host has a column, and a share of the array as long as 1 / width.
    along_column = Phase(1, steps, steps, num_local * steps / height * num_bytes / width)
    return Schedule(f"torus {width}x{height}", (along_row, along_column, along_row))


def flat_schedule(num_hosts: int, num_local: int, num_bytes: float) -> Schedule:
    """Exchange of shares between all ranks: each adds up its own, and sends the sum to all."""
    num_ranks = num_hosts * num_local
    crossing = num_local * (num_hosts - 1) / num_hosts * num_bytes
    phase = Phase(1, 1, num_ranks - 1, crossing)
    return Schedule("flat", (phase, phase))


def best_torus(
    num_hosts: int, num_local: int, num_bytes: float, tiers: Sequence[TierSpeed]
) -> Schedule:
    """The 2D-torus of the width that is fastest."""
    made = [
        torus_schedule(num_hosts, num_local, num_bytes, num_local * hosts)
        for hosts in range(1, num_hosts + 1)
        if num_hosts % hosts == 0
    ]
    return min(made, key=lambda schedule: schedule.seconds(tiers))


def grid_topology(num_hosts: int, num_local: int) -> Topology:
    """Hosts of as many ranks each; a rank's number does not matter to what they cost."""
    ranks = range(num_hosts * num_local)
    return Topology(
        tuple(tuple(ranks[at : at + num_local]) for at in range(0, len(ranks), num_local))
    )


def least_seconds(num_hosts: int, num_bytes: float, tiers: Sequence[TierSpeed]) -> float:
    """Time in which what must cross an uplink can cross it: 2 (H - 1) / H of the bytes."""
    return 2 * (num_hosts - 1) / num_hosts * num_bytes / tiers[1].bandwidth
