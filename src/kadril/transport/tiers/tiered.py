"""Ranks on several hosts: shared memory inside a host, and another transport between hosts.

An all-reduce of n bytes on H hosts:

    bytes            what crosses
    up to 1.4 KiB    it rides along in the meeting, one packet per pair of hosts
    up to 16 KiB     leaders send the sums of their hosts to each other
    up to 64 KiB     every rank sends its part of the sum to one rank of each other host
    more             in chunks with several under way: 2 (H - 1) / H n over each uplink, the least

A broadcast or an all-gather of little rides along in the meeting too, where a host has 1.4 KiB of
it at most: so a cycle of the engine is one meeting.

Sums are added inside a host first, pairwise by rank, and then pairwise across hosts (and racks,
where `KADRIL_TIERS` names them). Where hosts have contiguous ranks, a power of two each, that is
the order of every other transport, and the bits are the same. 16-bit floats are added in float32
inside a tier and rounded between tiers. See docs/promises.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from kadril.config import Config
from kadril.transport import checks
from kadril.transport.base import Transport
from kadril.transport.buffer import DTYPES, Buffer, Memory, as_bytes
from kadril.transport.call import Call, counted, reduction_call, shaped
from kadril.transport.network_group import Packet, as_data, as_memory
from kadril.transport.network_transport import SPLIT_RECORD, Kernel, NetworkTransport, buffer_of
from kadril.transport.operands import CheckedMessage, CheckedReduction
from kadril.transport.tiers.pipeline import Chunk, Pipeline
from kadril.transport.tiers.tier_group import ROOM_BYTES, TierGroup
from kadril.transport.tiers.tier_kernels import TierKernels
from kadril.transport.tiers.tier_moves import TierBroadcast, TierGather
from kadril.transport.tiers.tier_plan import CHUNK_BYTES, WayLimits, sum_chunk_bytes, way_for
from kadril.transport.tiers.tier_probe import agree_on_tuning
from kadril.transport.tiers.tier_reduce_scatter import TierReduceScatter
from kadril.transport.tiers.tier_reduction import TierReduction, reduce_rows
from kadril.transport.tiers.topology import Topology, read_dimensions
from kadril.transport.tiers.wire_format import check_wire_dtype

__all__ = ["TieredTransport"]


BYTE = DTYPES["uint8"]


class TieredTransport(TierGroup):
    """A group of ranks on several hosts.

    Attributes:
        chunk_bytes: bytes of an array that are under way together; the same on all ranks.
        limits: up to which size arrays take which way; the same on all ranks.
    """

    kind = "tiered"

    def __init__(
        self, inner: Transport, outer: NetworkTransport, topology: Topology, config: Config
    ) -> None:
        super().__init__(inner, outer, topology, config)
        self.chunk_bytes = CHUNK_BYTES
        self.limits = WayLimits()
        self._pipeline = Pipeline()

    @classmethod
    def open(
        cls,
        inner: Transport,
        outer: NetworkTransport,
        hosts: Sequence[Sequence[int]],
        config: Config,
    ) -> TieredTransport:
        """Make the transport of all ranks; collective. Both others are its own from now on.

        Args:
            inner: the ranks of this host, in the order of `hosts`.
            outer: all ranks, opened with the options of `outer_config`.
            hosts: ranks of each host.
            config: options; `tiers` and `wire_dtype` among them.

        Raises:
            ConfigError: `config.tiers` does not match the hosts.
            ModuleNotFoundError: `config.wire_dtype` is set, and torch is not installed.
        """
        check_wire_dtype(config.wire_dtype)
        if config.tiers:
            topology = Topology.with_dimensions(hosts, read_dimensions(config.tiers))
        else:
            topology = Topology(tuple(map(tuple, hosts)))
        return cls(inner, outer, topology, config)

    # Reductions.

    def _run_allreduce(self, reduction: CheckedReduction) -> None:
        source = reduction.source
        call = self._reduction_call("allreduce", shaped(source), reduction)
        with self._calling(call):
            if source.nbytes <= ROOM_BYTES:
                given, result = as_bytes(source.array), as_bytes(reduction.target.array)
                result[...] = self._reduce_in_meeting(call, Kernel.of(reduction), given)
                return
            self._agree(call)
            self._pipeline.run(self._chunks_of(reduction))

    def _run_allreduce_many(self, reductions: Sequence[CheckedReduction]) -> None:
        # What fits into a meeting goes there, as it does alone: company must not change its bits.
        short = [each for each in reductions if each.source.nbytes <= ROOM_BYTES]
        long = [each for each in reductions if each.source.nbytes > ROOM_BYTES]
        if len(long) < 2:
            super()._run_allreduce_many(reductions)
            return
        shapes = " + ".join(shaped(each.source) for each in long)
        call = self._reduction_call("allreduce_many", shapes, long[0])
        with self._calling(call):
            self._agree(call)
            self._pipeline.run(itertools.chain.from_iterable(map(self._chunks_of, long)))
        super()._run_allreduce_many(short)

    def _chunks_of(self, reduction: CheckedReduction) -> Iterator[Chunk]:
        """Return the chunks of an all-reduce that all ranks have agreed on."""
        given, result = as_bytes(reduction.source.array), as_bytes(reduction.target.array)
        way = way_for(given.size, self.limits)
        tiers = TierReduction(self, Kernel.of(reduction), self.config.wire_dtype, way)
        return tiers.chunks(given, result, self._sum_chunk_bytes(given.size))

    def _run_reduce(self, reduction: CheckedReduction, root: int) -> None:
        source = reduction.source
        call = self._reduction_call("reduce", shaped(source), reduction, root=root)
        kernel = Kernel.of(reduction)
        given, result = as_bytes(source.array), as_bytes(reduction.target.array)
        with self._calling(call):
            if source.nbytes <= ROOM_BYTES:
                total = self._reduce_in_meeting(call, kernel, given)
                if self.rank == root:
                    result[...] = total
                return
            self._agree(call)
            way = way_for(source.nbytes, self.limits)
            tiers = TierReduction(self, kernel, self.config.wire_dtype, way, root)
            self._pipeline.run(tiers.chunks(given, result, self._sum_chunk_bytes(source.nbytes)))

    def _run_reduce_scatterv(self, reduction: CheckedReduction, counts: Sequence[int]) -> None:
        source = reduction.source
        call = self._reduction_call("reduce_scatterv", counted(source, counts), reduction)
        kernel = Kernel.of(reduction)
        parts = [count * source.dtype.itemsize for count in counts]
        given, result = as_bytes(source.array), as_bytes(reduction.target.array)
        with self._calling(call):
            self._agree(call)
            way = way_for(source.nbytes, self.limits)
            tiers = TierReduceScatter(self, kernel, self.config.wire_dtype, way)
            self._pipeline.run(tiers.chunks(given, result, parts, self.chunk_bytes))

    def _reduce_in_meeting(self, call: Call, kernel: Kernel, given: Memory) -> Memory:
        """Reduce a few bytes that ride along in the meeting."""
        kernels = TierKernels.of(kernel, len(self.topology.tiers))

        def combine(parts: list[bytes]) -> bytes:
            total = np.empty_like(given)
            kernels.inside.reduce(total, [as_memory(part) for part in parts])
            return as_data(total)

        rows = self._meet_hosts(call, as_data(given), combine)
        return reduce_rows(self.topology, kernels, [row[: given.size] for row in rows])

    def _reduction_call(
        self, operation: str, memory: str, reduction: CheckedReduction, root: int | None = None
    ) -> Call:
        call = reduction_call(operation, memory, reduction, root=root)
        if not self.config.wire_dtype:
            return call
        # Ranks that cast otherwise would take each other's bytes for something else.
        return call._replace(common=(*call.common, f"wire_dtype={self.config.wire_dtype}"))

    # Movements.

    def _run_broadcast(self, memory: Buffer, root: int, name: str) -> None:
        call = Call("broadcast", (shaped(memory), f"root={root}"), name=name)
        data = as_bytes(memory.array)
        with self._calling(call):
            if data.size * max(map(len, self.topology.hosts)) <= ROOM_BYTES:
                data[...] = self._agree(call, data)[root]
                return
            self._agree(call)
            tiers = TierBroadcast(self, way_for(data.size, self.limits), root)
            self._pipeline.run(tiers.chunks(data, self.chunk_bytes))

    def _run_allgatherv(
        self, source: Buffer, target: Buffer, counts: Sequence[int], name: str
    ) -> None:
        call = Call("allgatherv", (counted(source, counts),), name=name)
        parts = [count * source.dtype.itemsize for count in counts]
        given, result = as_bytes(source.array), as_bytes(target.array)
        most = max(parts, default=0)
        with self._calling(call):
            if most * max(map(len, self.topology.hosts)) <= ROOM_BYTES:
                payload = np.zeros(most, dtype=np.uint8)
                payload[: given.size] = given
                rows = self._agree(call, payload)
                result[...] = np.concatenate(
                    [row[:part] for row, part in zip(rows, parts, strict=True)]
                )
                return
            self._agree(call)
            tiers = TierGather(self, way_for(result.size, self.limits))
            self._pipeline.run(tiers.chunks(given, result, parts, self.chunk_bytes))

    def allgather_bytes(self, data: bytes, *, name: str = "") -> list[bytes]:
        """Return a few bytes of each rank, as many of all."""
        call = Call("allgather_bytes", (f"{len(data)} bytes",), name=name)
        with self._calling(call):
            return [as_data(row) for row in self._agree(call, as_memory(data))]

    def _carry(self, sends: Sequence[Packet], recvs: Sequence[Packet]) -> None:
        """Move packets: those to other hosts by the outer group, those inside by the inner one."""
        complete = self._start_exchange(
            [packet for packet in self._spread(sends, 1) if packet[0] not in self.local],
            [packet for packet in self._spread(recvs, -1) if packet[0] not in self.local],
        )
        self._inside(
            self.inner._run_exchange, self._messages_inside(sends), self._messages_inside(recvs), ""
        )
        complete()

    def _sum_chunk_bytes(self, num_bytes: int) -> int:
        return sum_chunk_bytes(
            num_bytes,
            self.num_hosts,
            is_rounded=bool(self.config.wire_dtype),
            least=self.chunk_bytes,
        )

    def _messages_inside(self, packets: Sequence[Packet]) -> list[CheckedMessage]:
        return [
            CheckedMessage(self.local.index(peer), buffer_of(memory, BYTE))
            for peer, memory in packets
            if peer in self.local
        ]

    def tune(self, *, again: bool = False) -> list[str]:
        """Choose ways by the speed of the tiers; collective. See `Transport.tune`."""
        tuning = agree_on_tuning(self, again=again)
        self.limits = tuning.limits
        return list(tuning.describe())

    # Groups.

    def split(self, color: int | None, *, key: int | None = None) -> Transport | None:
        """Make a transport for each set of ranks that give the same color.

        Ranks of one host get that of the host; ranks of which no two share a host get that between
        hosts.
        """
        color, key = checks.check_split(color, key, self.rank)
        call = Call("split")
        record = as_memory(
            SPLIT_RECORD.pack(color is not None, color or 0, key, self.outer._new_number())
        )
        with self._calling(call):
            choices = [SPLIT_RECORD.unpack(as_data(row)) for row in self._agree(call, record)]
            self._num_splits += 1
            inner = self._inside(lambda: self._inner_meeting.split(color, key=key))
            if color is None or inner is None:
                return None
            members = sorted(
                (their_key, rank)
                for rank, (takes_part, their_color, their_key, _) in enumerate(choices)
                if takes_part and their_color == color
            )
            ranks = [rank for _, rank in members]
            return self._subgroup_of(inner, ranks, str(color), choices[ranks[0]][-1])

    def open_flat(self) -> Transport:
        """Make a transport of the same ranks that does not know of hosts; collective."""
        call = Call("open_flat")
        record = as_memory(SPLIT_RECORD.pack(True, 0, self.rank, self.outer._new_number()))
        with self._calling(call):
            numbers = [SPLIT_RECORD.unpack(as_data(row))[-1] for row in self._agree(call, record)]
            self._num_splits += 1
            label = f"{self._num_splits}.flat"
            return self.outer._subgroup(range(self.size), label, numbers[0])

    def _subgroup_of(
        self, inner: Transport, ranks: list[int], color: str, number: int
    ) -> Transport:
        hosts = [
            tuple(place for place, rank in enumerate(ranks) if rank in host)
            for host in self.topology.hosts
        ]
        hosts = sorted(host for host in hosts if host)
        if len(hosts) == 1:
            return self._inside(self._group_of_one_host, inner)
        outer = self.outer._subgroup(ranks, f"{self._num_splits}.{color}", number)
        outer.hostnames = self.hostnames
        if len(hosts) == len(ranks):
            inner.close()
            return outer
        group = TieredTransport(inner, outer, Topology(tuple(hosts)), self.config)
        group.limits = self.limits
        group.hostnames = self.hostnames
        return group

    def _group_of_one_host(self, inner: Transport) -> Transport:
        """Return a group that has nobody outside to look at, and warns as late as any other."""
        group = inner.duplicate(
            patience=self.config.patience, stall_warning=self.config.stall_warning
        )
        if group is not inner:
            inner.close()
        return group

    def close(self) -> None:
        """Leave the group; local, and may be called again. Ranks still waiting raise `PeerLost`."""
        super().close()
        self._pipeline.drop()
