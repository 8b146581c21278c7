"""Reduce-scatter over tiers: each host reduces what the ranks of another get, and sends it there.

host A   0: [ . . | b3 b4 ]      sum inside, cut over 0, 1:     [b3  b4]
         1: [ . . | b3 b4 ]                                       |   |
host B   3: [ a0 a1 | . . ]      sum of its own inside: b3 at 3   +-> 3: b3 of A + b3 of B
         4: [ a0 a1 | . . ]                             b4 at 4       4: b4 of A + b4 of B
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kadril.transport.buffer import Memory
from kadril.transport.network_group import Packet
from kadril.transport.network_transport import Kernel
from kadril.transport.tiers.pipeline import Chunk, Stages
from kadril.transport.tiers.scratch import Scratch
from kadril.transport.tiers.tier_blocks import Blocks, Slice, gather_slices, view_together
from kadril.transport.tiers.tier_group import TierGroup
from kadril.transport.tiers.tier_kernels import TierKernels
from kadril.transport.tiers.tier_moves import TURNS, TierMove
from kadril.transport.tiers.tier_plan import Piece, Way, common_pieces
from kadril.transport.tiers.wire_format import WireFormat

__all__ = ["TierReduceScatter"]


class TierReduceScatter(TierMove):
    """A reduce-scatter over the ranks of a group.

    Args:
        group: the ranks.
        kernel: the reduction.
        wire_dtype: `Config.wire_dtype`.
        way: "leaders" where only the first rank of each host sends.
    """

    def __init__(self, group: TierGroup, kernel: Kernel, wire_dtype: str, way: Way) -> None:
        super().__init__(group, way)
        self.item = kernel.dtype.itemsize
        self.wire = WireFormat(kernel, wire_dtype)
        num_tiers = 1 if self.others else 0
        self.kernels = TierKernels.of(kernel, num_tiers, is_rounded=self.wire.rounds)

    def chunks(
        self, given: Memory, result: Memory, parts: Sequence[int], chunk_bytes: int
    ) -> Iterator[Chunk]:
        """Yield the chunks of the blocks of all hosts; `parts` are the bytes of each rank."""
        blocks = Blocks(self.group.topology.hosts, parts)
        for host, begin, end in blocks.chunks(chunk_bytes, self.item):

            def chunk(
                scratch: Scratch, host: int = host, begin: int = begin, end: int = end
            ) -> Stages:
                slices = blocks.slices(host, begin, end)
                memory = view_together(given, slices)
                if memory is None:
                    memory = scratch.take(end - begin)
                    gather_slices(given, slices, memory)
                if host == self.group.host:
                    return self.collect(slices, memory, result, scratch)
                return self.contribute(host, slices, memory, scratch)

            yield chunk

    def contribute(
        self, host: int, slices: list[Slice], memory: Memory, scratch: Scratch
    ) -> Stages:
        """Reduce a chunk of the block of another host inside this one, and send it there."""
        counts = self.counts(memory.size // self.item, self.group.host)
        local_rank = self.group.inner.rank
        first = sum(counts[:local_rank])
        partial = scratch.take(counts[local_rank] * self.item)
        self.group.reduce_inside(self.kernels.inside, memory, partial, counts)
        sends: list[Packet] = []
        for begin, end, (source, target) in self._pieces_between(self.group.host, slices):
            if source == self.group.rank:
                piece = partial[(begin - first) * self.item : (end - first) * self.item]
                sends.append((target, self.wire.pack(piece, scratch)))
        complete = self.group._start_exchange(sends, [])
        for _ in range(TURNS):
            yield
        complete()

    def collect(
        self, slices: list[Slice], memory: Memory, result: Memory, scratch: Scratch
    ) -> Stages:
        """Reduce a chunk of the block of this host, and add what comes from the others."""
        mine = slices[self.group.inner.rank]
        target = result[mine.skip : mine.skip + mine.num_bytes]
        counts = [each.num_bytes // self.item for each in slices]
        self.group.reduce_inside(self.kernels.inside, memory, target, counts)
        arrivals: dict[int, Memory] = {}
        recvs: list[Packet] = []
        first = mine.begin // self.item
        for host in self.others if mine.num_bytes else []:
            arrival = scratch.take(mine.num_bytes // self.item * self.wire.itemsize)
            arrivals[host] = arrival
            for begin, end, (source, owner) in self._pieces_between(host, slices):
                if owner == self.group.rank:
                    low, high = (begin - first, end - first)
                    place = arrival[low * self.wire.itemsize : high * self.wire.itemsize]
                    recvs.append((source, place))
        complete = self.group._start_exchange([], recvs)
        for _ in range(TURNS):
            yield
        complete()
        if arrivals:
            sources = [
                self.wire.unpack(arrivals[host], scratch) if host in arrivals else target
                for host in range(self.group.num_hosts)
            ]
            self.kernels.last.reduce(target, sources)

    def _pieces_between(
        self, host: int, slices: Sequence[Slice]
    ) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yield what ranks of a host send to ranks that have slices of a chunk, in elements."""
        num_elements = sum(each.num_bytes for each in slices) // self.item
        targets = [
            Piece(each.begin // self.item, each.end // self.item, each.rank)
            for each in slices
            if each.num_bytes
        ]
        return common_pieces([self.pieces(num_elements, host), targets])
