"""Movements over tiers, in which each byte crosses an uplink once in each direction at most.

What goes from one host to another is cut evenly over the ranks of both, so that all of them send
and receive at the same time, and is then shared inside:

    from host A   |   0   |   1   |   2   |
    into host B   |     3     |     4     |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kadril.transport.buffer import Memory
from kadril.transport.network_group import Packet
from kadril.transport.tiers.pipeline import Chunk, Stages
from kadril.transport.tiers.scratch import Scratch
from kadril.transport.tiers.tier_blocks import (
    Blocks,
    Slice,
    chunk_cuts,
    scatter_slices,
    view_together,
)
from kadril.transport.tiers.tier_group import TierGroup
from kadril.transport.tiers.tier_plan import Piece, Way, common_pieces, held_counts, pieces_of

__all__ = ["TierBroadcast", "TierGather", "TierMove"]

TURNS = 2  # of the pipeline between the start of an exchange and its completion


class TierMove:
    """Moves chunks between hosts.

    Args:
        group: the ranks.
        way: "leaders" where only the first rank of each host sends and receives.
    """

    def __init__(self, group: TierGroup, way: Way) -> None:
        self.group = group
        self.way: Way = way
        self.others = [host for host in range(group.num_hosts) if host != group.host]

    def counts(self, num_elements: int, host: int) -> tuple[int, ...]:
        """Return how much of a chunk each rank of a host sends or receives."""
        return held_counts(num_elements, len(self.group.topology.hosts[host]), self.way)

    def pieces(self, num_elements: int, host: int) -> list[Piece]:
        """Return what of a chunk each rank of a host sends or receives."""
        return pieces_of(self.group.topology.hosts[host], self.counts(num_elements, host))

    def sends(self, memory: Memory, hosts: Sequence[int]) -> list[Packet]:
        """Packets with this rank's share of a chunk, for each of some hosts."""
        mine = self.pieces(memory.size, self.group.host)
        return [
            (target, memory[begin:end])
            for host in hosts
            for begin, end, (source, target) in common_pieces(
                [mine, self.pieces(memory.size, host)]
            )
            if source == self.group.rank
        ]

    def recvs(self, memory: Memory, host: int) -> list[Packet]:
        """Packets with the share of a chunk that this rank gets from a host."""
        theirs = self.pieces(memory.size, host)
        mine = self.pieces(memory.size, self.group.host)
        return [
            (source, memory[begin:end])
            for begin, end, (source, target) in common_pieces([theirs, mine])
            if target == self.group.rank
        ]

    def share_inside(self, memory: Memory) -> None:
        """Give the share of a chunk that came to the other ranks of this host."""
        counts = self.counts(memory.size, self.group.host)
        local_rank = self.group.inner.rank
        begin = sum(counts[:local_rank])
        self.group.gather_inside(memory[begin : begin + counts[local_rank]], memory, counts)


class TierGather(TierMove):
    """An all-gather: the ranks of a host share their parts, and then give them to other hosts."""

    def chunks(
        self, source: Memory, result: Memory, parts: Sequence[int], chunk_bytes: int
    ) -> Iterator[Chunk]:
        """Yield the chunks of the blocks of all hosts; `parts` are the bytes of each rank."""
        blocks = Blocks(self.group.topology.hosts, parts)
        for host, begin, end in blocks.chunks(chunk_bytes, 1):

            def chunk(
                scratch: Scratch, host: int = host, begin: int = begin, end: int = end
            ) -> Stages:
                slices = blocks.slices(host, begin, end)
                return self.stages(host, slices, source, result, scratch)

            yield chunk

    def stages(
        self,
        host: int,
        slices: list[Slice],
        source: Memory,
        result: Memory,
        scratch: Scratch,
    ) -> Stages:
        """Gather one chunk of the block of a host."""
        together = view_together(result, slices)
        memory = together
        if memory is None:
            memory = scratch.take(sum(each.num_bytes for each in slices))
        if host == self.group.host:
            mine = slices[self.group.inner.rank]
            given = source[mine.skip : mine.skip + mine.num_bytes]
            self.group.gather_inside(given, memory, [each.num_bytes for each in slices])
            complete = self.group._start_exchange(self.sends(memory, self.others), [])
        else:
            complete = self.group._start_exchange([], self.recvs(memory, host))
        for _ in range(TURNS):
            yield
        complete()
        if host != self.group.host:
            self.share_inside(memory)
        if together is None:
            scatter_slices(memory, slices, result)


class TierBroadcast(TierMove):
    """A broadcast: the root's host gives each chunk to one other host, which gives it to the rest.

    So with many hosts no uplink carries a byte more than twice. Few bytes go to all hosts at once.
    """

    def __init__(self, group: TierGroup, way: Way, root: int) -> None:
        super().__init__(group, way)
        self.root = root
        self.root_host = group.topology.host_of(root)
        self.targets = [host for host in range(group.num_hosts) if host != self.root_host]
        self.relays = len(self.targets) > 1 and way == "shares"

    def chunks(self, memory: Memory, chunk_bytes: int) -> Iterator[Chunk]:
        """Yield the chunks of the array."""
        for number, (begin, end) in enumerate(chunk_cuts(memory.size, chunk_bytes, 1)):
            relay = self.targets[number % len(self.targets)] if self.relays else None

            def chunk(
                scratch: Scratch, begin: int = begin, end: int = end, relay: int | None = relay
            ) -> Stages:
                return self.stages(memory[begin:end], relay)

            yield chunk

    def stages(self, memory: Memory, relay: int | None) -> Stages:
        """Broadcast one chunk, by way of a host or to all hosts at once."""
        group = self.group
        rest = [host for host in self.targets if host != relay]
        if group.host == self.root_host:
            group.broadcast_inside(memory, group.local.index(self.root))
            first = self.targets if relay is None else [relay]
            complete = group._start_exchange(self.sends(memory, first), [])
            for _ in range(TURNS):
                yield
            complete()
            return
        is_first = relay is None or group.host == relay
        origin = self.root_host if is_first else relay
        assert origin is not None  # noqa: S101
        complete = group._start_exchange([], self.recvs(memory, origin))
        for _ in range(TURNS if is_first else TURNS + 1):
            yield
        complete()
        if group.host == relay:
            complete = group._start_exchange(self.sends(memory, rest), [])
            yield
            complete()
        self.share_inside(memory)
