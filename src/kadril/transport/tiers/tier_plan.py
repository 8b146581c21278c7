"""The plan of an all-reduce over tiers: who adds which elements, and what crosses which link.

Pure data, made of a topology and a number of elements; nothing here moves a byte. Two hosts with
three and two ranks, n elements:

    host A   0: [0, n/3)          1: [n/3, 2n/3)          2: [2n/3, n)     reduce-scatter inside
    host B   3: [0, n/2)                   4: [n/2, n)

    cut where either is cut:    0 | n/3 | n/2 | 2n/3 | n
    who has a partial sum:       0,3   1,3   1,4    2,4

Each such piece is cut evenly over the hosts. The first share is added by host A's rank that has the
piece, the second by host B's, and the sums go back the same way. So a host sends all but its own
shares and then its shares to all others: 2 (H - 1) / H n elements over each uplink, the least
possible, however many ranks a host has and whichever they are. A further tier does the same with
the shares of a group of hosts.

Where the last tier joins two units, or there is little to add, both sides send all they have and
both add: as much volume for two units, in one step instead of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from kadril.transport.tiers.topology import Topology

__all__ = [
    "CHUNK_BYTES",
    "WAYS",
    "Piece",
    "RankStep",
    "Span",
    "Sum",
    "TierPlan",
    "Transfer",
    "Way",
    "WayLimits",
    "common_pieces",
    "even_counts",
    "even_cuts",
    "held_counts",
    "make_plan",
    "pieces_of",
    "sum_chunk_bytes",
    "way_for",
]

CHUNK_BYTES = 1 << 20
MOST_CHUNK_BYTES = 16 << 20
NUM_CHUNKS = 4  # into which a sum is cut at least before chunks are longer than CHUNK_BYTES


class Piece(NamedTuple):
    """Elements, and the rank of a unit that has them."""

    begin: int
    end: int
    rank: int


class Sum(NamedTuple):
    """Elements that are added up across the units of one tier.

    Attributes:
        begin, end: the elements.
        sources: ranks that have a partial sum of them, one of each unit, in the order of additions.
        owners: those of the sources that add: one, which then sends the sum to the others; or all.
    """

    begin: int
    end: int
    sources: tuple[int, ...]
    owners: tuple[int, ...]

    def outward(self) -> list[tuple[int, int]]:
        """Return who sends its partial sum to whom."""
        return [
            (source, owner) for owner in self.owners for source in self.sources if source != owner
        ]

    def backward(self) -> list[tuple[int, int]]:
        """Return who sends the sum to whom; nobody, where all have added it."""
        if len(self.owners) > 1:
            return []
        owner = self.owners[0]
        return [(owner, source) for source in self.sources if source != owner]

    def aimed_at(self, root_host: Sequence[int]) -> Sum:
        """The same sum where only one host needs it: its rank adds, if all would."""
        if len(self.owners) == 1:
            return self
        return self._replace(owners=tuple(rank for rank in self.owners if rank in root_host))


class Transfer(NamedTuple):
    """Elements that go from one rank to another.

    Attributes:
        tier: that they cross: 1 between hosts, 2 between groups of hosts, ...
        way: "out" for partial sums, "back" for sums.
        source, target: ranks.
        begin, end: the elements.
    """

    tier: int
    way: str
    source: int
    target: int
    begin: int
    end: int


Span: TypeAlias = tuple[int, int, int]  # peer, begin, end


class RankStep(NamedTuple):
    """Messages and sums of one rank in one tier.

    Attributes:
        sends, recvs: partial sums; what comes is in the order of the sums and of their sources.
        sums: those that this rank adds.
        back_sends, back_recvs: sums on their way back.
        goes_back: whether any rank has some.
    """

    sends: tuple[Span, ...]
    recvs: tuple[Span, ...]
    sums: tuple[Sum, ...]
    back_sends: tuple[Span, ...]
    back_recvs: tuple[Span, ...]
    goes_back: bool


@dataclass(frozen=True)
class TierPlan:
    """Plan of a reduction: which rank adds what.

    Attributes:
        topology: whose ranks take part.
        num_elements: of the array.
        counts: elements of each rank after the reduce-scatter inside its host, host by host.
        steps: one entry for each tier above: its sums.
    """

    topology: Topology
    num_elements: int
    counts: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[Sum, ...], ...]

    def transfers(self) -> Iterator[Transfer]:
        """Yield all that crosses between hosts, in the order in which it is sent."""
        tiers = list(enumerate(self.steps, 1))
        for tier, sums in tiers:
            for each in sums:
                for source, target in each.outward():
                    yield Transfer(tier, "out", source, target, each.begin, each.end)
        for tier, sums in reversed(tiers):
            for each in sums:
                for source, target in each.backward():
                    yield Transfer(tier, "back", source, target, each.begin, each.end)

    def steps_of(self, rank: int, root_host: Sequence[int] = ()) -> list[RankStep]:
        """Return what one rank does in each tier.

        Args:
            rank: whose steps these are.
            root_host: ranks of the host that alone needs the result; all do where it is empty.
        """
        return [step_of(sums, rank, root_host) for sums in self.steps]

    def uplinks(self, tier: int) -> list[tuple[int, int]]:
        """Elements that each unit of a tier sends to, and receives from, ranks outside it."""
        units = self.topology.units(tier)
        unit_of = {rank: index for index, unit in enumerate(units) for rank in unit}
        sent, received = [0] * len(units), [0] * len(units)
        for transfer in self.transfers():
            source, target = unit_of[transfer.source], unit_of[transfer.target]
            if source != target:
                sent[source] += transfer.end - transfer.begin
                received[target] += transfer.end - transfer.begin
        return list(zip(sent, received, strict=True))


Way: TypeAlias = Literal["shares", "one step", "leaders"]

WAYS: tuple[Way, ...] = ("leaders", "one step", "shares")  # from that with the fewest packets on


class WayLimits(NamedTuple):
    """Limits in bytes up to which arrays take each way; beyond both they go in shares.

    Attributes:
        leaders: up to here fewer packets count for more than sharing them.
        one_step: up to here a step less counts for more than the least volume.
    """

    leaders: int = 16 << 10
    one_step: int = 64 << 10


def way_for(num_bytes: int, limits: WayLimits = WayLimits()) -> Way:  # noqa: B008 - a constant
    """The way that arrays of a size take."""
    if num_bytes <= limits.leaders:
        return "leaders"
    return "one step" if num_bytes <= limits.one_step else "shares"


@lru_cache(maxsize=256)
def make_plan(topology: Topology, num_elements: int, way: Way = "shares") -> TierPlan:
    """Plan an all-reduce.

    Args:
        topology: whose ranks take part.
        num_elements: of the array.
        way: "shares" for the least volume. "one step" where all units of the last tier add
            everything, which takes one step less and, for more than two units, more volume.
            "leaders" is that among the first ranks of hosts only, with the fewest packets.
    """
    counts = tuple(held_counts(num_elements, len(host), way) for host in topology.hosts)
    units = [pieces_of(host, held) for host, held in zip(topology.hosts, counts, strict=True)]
    steps = []
    tiers = topology.tiers
    for tier in tiers:
        is_whole = tier is tiers[-1] and (way != "shares" or len(tier[0]) == 2)
        make = whole_sums if is_whole else shared_sums
        made = [make([units[unit] for unit in group]) for group in tier]
        steps.append(tuple(each for sums in made for each in sums if len(each.sources) > 1))
        units = [[Piece(each.begin, each.end, each.owners[0]) for each in sums] for sums in made]
    return TierPlan(topology, num_elements, counts, tuple(steps))


def sum_chunk_bytes(
    num_bytes: int, num_hosts: int, *, is_rounded: bool, least: int = CHUNK_BYTES
) -> int:
    """Bytes of a sum that are under way together.

    Each host gets a share of a chunk, in fewer bytes where they are rounded. With shares of 64 KiB
    ranks are busier with messages than the link with bytes: on 4 hosts with bf16 64 MiB took 1.3 s
    in chunks of 1 MiB, and 0.47 s in chunks of 4 MiB.

    Args:
        num_bytes: of the array.
        num_hosts: that each get a share.
        is_rounded: whether elements cross in fewer bytes than they have.
        least: bytes of a chunk for two hosts.
    """
    most = least * max(1, num_hosts // 2) * (2 if is_rounded else 1)
    return max(least, min(most, MOST_CHUNK_BYTES, num_bytes // NUM_CHUNKS))


def held_counts(num_elements: int, num_ranks: int, way: Way) -> tuple[int, ...]:
    """Elements of each rank after the reduce-scatter inside a host."""
    if way == "leaders":
        return (num_elements, *[0] * (num_ranks - 1))
    return even_counts(num_elements, num_ranks)


def step_of(sums: Sequence[Sum], rank: int, root_host: Sequence[int]) -> RankStep:
    """Return what one rank does in one tier; see `TierPlan.steps_of`."""
    sends, recvs, back_sends, back_recvs = [], [], [], []
    added = []
    goes_back = False
    for given in sums:
        each = given.aimed_at(root_host) if root_host else given
        if rank in each.owners:
            added.append(each)
        for source, target in each.outward():
            if source == rank:
                sends.append((target, each.begin, each.end))
            elif target == rank:
                recvs.append((source, each.begin, each.end))
        for source, target in each.backward():
            if root_host and target not in root_host:
                continue
            goes_back = True
            if source == rank:
                back_sends.append((target, each.begin, each.end))
            elif target == rank:
                back_recvs.append((source, each.begin, each.end))
    return RankStep(
        tuple(sends), tuple(recvs), tuple(added), tuple(back_sends), tuple(back_recvs), goes_back
    )


def whole_sums(units: Sequence[Sequence[Piece]]) -> list[Sum]:
    """Sums that every unit makes for itself."""
    return [Sum(begin, end, ranks, ranks) for begin, end, ranks in common_pieces(units)]


def shared_sums(units: Sequence[Sequence[Piece]]) -> list[Sum]:
    """Sums of which every unit makes a share of each piece."""
    sums = []
    for begin, end, ranks in common_pieces(units):
        cuts = even_cuts(end - begin, len(units))
        for rank, (low, high) in zip(ranks, pairwise(cuts), strict=True):
            if low < high:
                sums.append(Sum(begin + low, begin + high, ranks, (rank,)))
    return sums


def common_pieces(
    units: Sequence[Sequence[Piece]],
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the pieces cut where any unit is cut: begin, end, and the rank of each unit."""
    places = [0] * len(units)
    begin = 0
    last = units[0][-1].end if units[0] else 0
    while begin < last:
        held = [unit[place] for unit, place in zip(units, places, strict=True)]
        end = min(piece.end for piece in held)
        yield begin, end, tuple(piece.rank for piece in held)
        places = [place + (piece.end == end) for place, piece in zip(places, held, strict=True)]
        begin = end


def pieces_of(ranks: Sequence[int], counts: Sequence[int]) -> list[Piece]:
    """Consecutive pieces of ranks; ranks without elements have none."""
    pieces, begin = [], 0
    for rank, count in zip(ranks, counts, strict=True):
        if count:
            pieces.append(Piece(begin, begin + count, rank))
        begin += count
    return pieces


def even_counts(num_elements: int, num_parts: int) -> tuple[int, ...]:
    """Lengths of parts that differ by one at most."""
    return tuple(high - low for low, high in pairwise(even_cuts(num_elements, num_parts)))


def even_cuts(num_elements: int, num_parts: int) -> list[int]:
    """Return where parts that differ by one at most begin, and where the last ends."""
    return [num_elements * part // num_parts for part in range(num_parts + 1)]
