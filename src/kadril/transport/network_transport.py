"""Collectives over anything that can carry bytes; the reduction is ours.

An engine below (gloo, MPI) carries packets and knows nothing of element types. Sums are made by the
native kernel pairwise by rank, so every transport gives the same bits, for every dtype, whatever
the engine can add. Each call is a meeting (`network_group.py`), then packets:

    bytes             allreduce
    up to 64          they ride along in the meeting
    up to 16 KiB      1 exchange: everybody gets everything and reduces it
    more              2 exchanges for each segment of 32 MiB:

    rank 0  [00 01 02]             00 + 10 + 20 = s0                  [s0 s1 s2]
    rank 1  [10 11 12]  --parts->  01 + 11 + 21 = s1  --results->     [s0 s1 s2]
    rank 2  [20 21 22]             02 + 12 + 22 = s2                  [s0 s1 s2]

With p ranks and n bytes a rank sends 2 n (p - 1) / p of them, the least possible. The other
reductions are the first half of that, with the results sent to one rank or to none.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kadril import _native
from kadril.config import Config
from kadril.transport import checks
from kadril.transport.base import Transport
from kadril.transport.buffer import Buffer, DType, Memory, address_of, as_bytes
from kadril.transport.call import Call, alltoallv_call, counted, reduction_call, shaped
from kadril.transport.network_group import INLINE_BYTES, NetworkGroup, Packet, as_data, as_memory
from kadril.transport.operands import CheckedAllToAll, CheckedMessage, CheckedReduction
from kadril.transport.slicing import chunks_of, even_parts, view_parts

__all__ = ["Kernel", "NetworkTransport", "buffer_of"]

SMALL_BYTES = 16 << 10  # up to here one exchange more costs more than the bytes it saves
CHUNK_BYTES = 32 << 20  # bounds the memory that a reduction takes beside its arguments
SPLIT_RECORD = struct.Struct("<?qqq")  # takes part, color, key, number


class Kernel(NamedTuple):
    """A reduction, ready to run over addresses."""

    dtype: DType
    op_code: int
    prescale: float
    postscale: float

    @classmethod
    def of(cls, reduction: CheckedReduction) -> Kernel:
        """The kernel of a call."""
        return cls(
            reduction.source.dtype, reduction.op_code, reduction.prescale, reduction.postscale
        )

    def reduce(self, target: Memory, sources: Sequence[Memory]) -> None:
        """Write the reduction of the sources, in their order, to `target`; it may be one."""
        if target.size:
            _native.reduce_local(
                [address_of(target)],
                [address_of(source) for source in sources],
                target.size // self.dtype.itemsize,
                self.dtype.code,
                self.op_code,
                self.prescale,
                self.postscale,
            )


def buffer_of(memory: Memory, dtype: DType) -> Buffer:
    """Flat bytes as a buffer of elements."""
    count = memory.size // dtype.itemsize
    return Buffer(address_of(memory), count, dtype, (count,), memory)


class NetworkTransport(NetworkGroup, Transport):
    """A transport made of `_meet`, `_start_exchange` and `_subgroup`; its methods: `base.py`."""

    def __init__(self, rank: int, size: int, world_ranks: Sequence[int], config: Config) -> None:
        super().__init__(rank, size, world_ranks, config)
        self._num_splits = 0
        self._scratch = np.empty(0, dtype=np.uint8)

    def _subgroup(self, members: Sequence[int], label: str, number: int) -> NetworkTransport:
        """Make a transport for some ranks of this group, in that order; all of them call it.

        Args:
            members: ranks of this group.
            label: unique among the groups that are made of this one.
            number: what `_new_number` of the first member gave.
        """
        raise NotImplementedError

    def _new_number(self) -> int:
        """A number for a group of which this rank may become the first member."""
        return 0

    # Collectives.

    def _run_allreduce(self, reduction: CheckedReduction) -> None:
        source = reduction.source
        call = reduction_call("allreduce", shaped(source), reduction)
        kernel = Kernel.of(reduction)
        given, result = as_bytes(source.array), as_bytes(reduction.target.array)
        with self._calling(call):
            if self._is_small(source):
                kernel.reduce(result, list(self._agree(call, given)))
                return
            self._agree(call)
            for begin, end in chunks_of(source.nbytes, CHUNK_BYTES):
                parts = even_parts(end - begin, self.size, source.dtype.itemsize)
                mine = view_parts(result[begin:end], parts)[self.rank]
                self._reduce_own(kernel, view_parts(given[begin:end], parts), mine)
                self._share(result[begin:end], parts)

    def _run_reduce(self, reduction: CheckedReduction, root: int) -> None:
        source = reduction.source
        call = reduction_call("reduce", shaped(source), reduction, root=root)
        kernel = Kernel.of(reduction)
        given, result = as_bytes(source.array), as_bytes(reduction.target.array)
        with self._calling(call):
            if self._is_small(source):
                rows = self._agree(call, given)
                if self.rank == root:
                    kernel.reduce(result, list(rows))
                return
            self._agree(call)
            for begin, end in chunks_of(source.nbytes, CHUNK_BYTES):
                self._reduce_segment(kernel, root, given[begin:end], result[begin:end])

    def _run_broadcast(self, memory: Buffer, root: int, name: str) -> None:
        call = Call("broadcast", (shaped(memory), f"root={root}"), name=name)
        data = as_bytes(memory.array)
        with self._calling(call):
            if data.size <= INLINE_BYTES:
                data[...] = self._agree(call, data)[root]
                return
            self._agree(call)
            if self._is_small(memory) or self.size == 2:
                self._give(root, [data] * self.size, data)
                return
            # The root gives each rank a part, and the ranks give their parts to each other: so the
            # root sends each byte twice at most, instead of once to every rank.
            parts = even_parts(data.size, self.size, 1)
            views = view_parts(data, parts)
            self._give(root, views, views[self.rank])
            self._share(data, parts)

    def _run_allgatherv(
        self, source: Buffer, target: Buffer, counts: Sequence[int], name: str
    ) -> None:
        call = Call("allgatherv", (counted(source, counts),), name=name)
        parts = [count * source.dtype.itemsize for count in counts]
        result = as_bytes(target.array)
        with self._calling(call):
            self._agree(call)
            mine = view_parts(result, parts)[self.rank]
            if address_of(mine) != source.address:
                mine[...] = as_bytes(source.array)
            self._share(result, parts)

    def allgather_bytes(self, data: bytes, *, name: str = "") -> list[bytes]:
        """Return a few bytes of each rank, as many of all."""
        if self.size == 1:
            self._check_usable(Call("allgather_bytes", name=name))
            return [data]
        rows = np.empty((self.size, len(data)), dtype=np.uint8)
        self.allgatherv(as_memory(data), rows, [len(data)] * self.size, name=name)
        return [as_data(row) for row in rows]

    def _run_reduce_scatterv(self, reduction: CheckedReduction, counts: Sequence[int]) -> None:
        source = reduction.source
        call = reduction_call("reduce_scatterv", counted(source, counts), reduction)
        kernel = Kernel.of(reduction)
        parts = [count * source.dtype.itemsize for count in counts]
        views, result = view_parts(as_bytes(source.array), parts), as_bytes(reduction.target.array)
        with self._calling(call):
            self._agree(call)
            step = max(CHUNK_BYTES // self.size // 16, 1) * 16  # whole elements of every dtype
            for begin in range(0, max(view.size for view in views), step):
                pieces = [view[begin : begin + step] for view in views]
                self._reduce_own(kernel, pieces, result[begin : begin + step])

    def _run_alltoallv(self, arguments: CheckedAllToAll) -> None:
        source, send_counts, target, recv_counts, _ = arguments
        call = alltoallv_call(source.dtype.name, arguments)
        item = source.dtype.itemsize
        given = view_parts(as_bytes(source.array), [count * item for count in send_counts])
        result = view_parts(as_bytes(target.array), [count * item for count in recv_counts])
        with self._calling(call):
            self._agree_in_pairs(call, send_counts, recv_counts)
            self._carry(list(enumerate(given)), list(enumerate(result)))

    def _run_exchange(
        self, sends: Sequence[CheckedMessage], recvs: Sequence[CheckedMessage], name: str
    ) -> None:
        own = tuple(f"to {peer}: {checks.describe(buffer)}" for peer, buffer in sends)
        own += tuple(f"from {peer}: {checks.describe(buffer)}" for peer, buffer in recvs)
        call = Call("exchange", (), own, name)
        with self._calling(call):
            self._agree_in_pairs(
                call, pair_digests(sends, self.size), pair_digests(recvs, self.size)
            )
            self._carry(
                [(peer, as_bytes(buffer.array)) for peer, buffer in sends],
                [(peer, as_bytes(buffer.array)) for peer, buffer in recvs],
            )

    def barrier(self, *, name: str = "") -> None:
        """Return when every rank has called it."""
        call = Call("barrier", name=name)
        with self._calling(call):
            self._agree(call)

    def split(self, color: int | None, *, key: int | None = None) -> Transport | None:
        """Make a transport for each set of ranks that give the same color."""
        color, key = checks.check_split(color, key, self.rank)
        call = Call("split")
        record = as_memory(
            SPLIT_RECORD.pack(color is not None, color or 0, key, self._new_number())
        )
        with self._calling(call):
            choices = [SPLIT_RECORD.unpack(as_data(row)) for row in self._agree(call, record)]
            self._num_splits += 1
            if color is None:
                return None
            members = sorted(
                (their_key, rank)
                for rank, (takes_part, their_color, their_key, _) in enumerate(choices)
                if takes_part and their_color == color
            )
            ranks = [rank for _, rank in members]
            number = choices[ranks[0]][-1]
            group = self._subgroup(ranks, f"{self._num_splits}.{color}", number)
            group.hostnames = self.hostnames
            return group

    def close(self) -> None:
        """Leave the group; local, and may be called again. Ranks still waiting raise `PeerLost`."""
        super().close()
        self._scratch = np.empty(0, dtype=np.uint8)

    # Movements.

    def _carry(self, sends: Sequence[Packet], recvs: Sequence[Packet]) -> None:
        """`_exchange`, with packets to oneself copied and empty ones left out."""
        own_sends = [data for peer, data in sends if peer == self.rank]
        own_recvs = [memory for peer, memory in recvs if peer == self.rank]
        for data, memory in zip(own_sends, own_recvs, strict=True):
            memory[...] = data
        sends, recvs = self._spread(sends, 1), self._spread(recvs, -1)
        if sends or recvs:
            self._exchange(sends, recvs)

    def _spread(self, packets: Sequence[Packet], direction: int) -> list[Packet]:
        """Packets to others, in such an order that not all ranks send to rank 0 first."""
        others = [packet for packet in packets if packet[0] != self.rank and packet[1].size]
        return sorted(others, key=lambda packet: (packet[0] - self.rank) * direction % self.size)

    def _give(self, root: int, pieces: Sequence[Memory], mine: Memory) -> None:
        """Send piece r of the root to `mine` of rank r."""
        if self.rank == root:
            self._carry([(rank, piece) for rank, piece in enumerate(pieces) if rank != root], [])
        else:
            self._carry([], [(root, mine)])

    def _share(self, memory: Memory, parts: Sequence[int]) -> None:
        """Send this rank's part of `memory` to all, and receive theirs."""
        views = view_parts(memory, parts)
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._carry(
            [(rank, views[self.rank]) for rank in others], [(rank, views[rank]) for rank in others]
        )

    def _reduce_own(
        self, kernel: Kernel, pieces: Sequence[Memory], target: Memory | None
    ) -> Memory:
        """Send piece r to rank r, reduce what came from the others, and return the result.

        The target may be this rank's own piece; where it is None the result is in memory that the
        next call reuses.
        """
        mine = pieces[self.rank]
        sources = view_parts(self._scratch_of(mine.size * self.size), [mine.size] * self.size)
        target = sources[self.rank] if target is None else target
        sources[self.rank] = mine
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._carry(
            [(rank, pieces[rank]) for rank in others], [(rank, sources[rank]) for rank in others]
        )
        kernel.reduce(target, sources)
        return target

    def _reduce_segment(self, kernel: Kernel, root: int, given: Memory, result: Memory) -> None:
        """Reduce one segment to `result` of the root; elsewhere nothing is written."""
        parts = even_parts(given.size, self.size, kernel.dtype.itemsize)
        pieces, results = view_parts(given, parts), view_parts(result, parts)
        if self.rank == root:
            self._reduce_own(kernel, pieces, results[root])
            self._carry([], [(rank, part) for rank, part in enumerate(results) if rank != root])
        else:
            self._carry([(root, self._reduce_own(kernel, pieces, None))], [])

    def _scratch_of(self, num_bytes: int) -> Memory:
        """Memory kept from call to call: fresh pages cost more than the bytes that go into them."""
        if self._scratch.size < num_bytes:
            self._scratch = np.empty(num_bytes, dtype=np.uint8)
        return self._scratch[:num_bytes]

    def _is_small(self, buffer: Buffer) -> bool:
        return buffer.nbytes <= SMALL_BYTES or self.size == 1


def pair_digests(messages: Sequence[CheckedMessage], size: int) -> list[int]:
    """Return a digest of the dtypes and counts of each peer's messages; 0 for none."""
    lists: list[list[str]] = [[] for _ in range(size)]
    for peer, buffer in messages:
        lists[peer].append(checks.describe(buffer))
    return [short_digest(";".join(entry)) if entry else 0 for entry in lists]


def short_digest(text: str) -> int:
    """A signed 64-bit number for a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
