"""Reductions over tiers, chunk by chunk: inside a host, between hosts, and back.

    rank of host A   [ its elements ]  -+ reduce-scatter           all-gather +-  [ result ]
    rank of host A   [ its elements ]  -+  inside       out, back      inside +-  [ result ]
                                             +-----> [ its part ] <-----+
    rank of host B   ...                     +-----> [ its part ] <-----+         ...

Every local rank drives its own part across hosts at the same time; who adds what is in
`tier_plan.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kadril.transport.buffer import Memory
from kadril.transport.network_transport import Kernel
from kadril.transport.tiers.pipeline import Chunk, Stages
from kadril.transport.tiers.scratch import Scratch
from kadril.transport.tiers.tier_blocks import chunk_cuts
from kadril.transport.tiers.tier_group import TierGroup
from kadril.transport.tiers.tier_kernels import TierKernels
from kadril.transport.tiers.tier_plan import (
    RankStep,
    Span,
    TierPlan,
    Way,
    make_plan,
)
from kadril.transport.tiers.topology import Topology
from kadril.transport.tiers.wire_format import WireFormat

__all__ = ["TierReduction", "reduce_rows"]

# Turns of the pipeline between the start of an exchange and its completion. Two, since a part that
# is sent and added in one exchange has no second one to be under way beside it.
TURNS = 2


class TierReduction:
    """A reduction over the ranks of a group, for as many chunks as it takes.

    Args:
        group: the ranks.
        kernel: the reduction.
        wire_dtype: `Config.wire_dtype`.
        way: see `make_plan`.
        root: the rank that alone gets the result; all do where it is None.
    """

    def __init__(
        self,
        group: TierGroup,
        kernel: Kernel,
        wire_dtype: str,
        way: Way = "shares",
        root: int | None = None,
    ) -> None:
        self.group = group
        self.item = kernel.dtype.itemsize
        self.way: Way = way
        self.root = root
        self.wire = WireFormat(kernel, wire_dtype)
        # A reduction to one rank needs no more than two tiers: its result does not come back.
        hosts = group.topology.hosts
        self.topology = group.topology if root is None else Topology(hosts)
        self.root_host: Sequence[int] = () if root is None else hosts[group.topology.host_of(root)]
        self.num_tiers = len(self.topology.tiers)
        self.kernels = TierKernels.of(kernel, self.num_tiers, is_rounded=self.wire.rounds)
        self._steps: dict[int, tuple[TierPlan, list[RankStep]]] = {}

    def chunks(self, given: Memory, result: Memory, chunk_bytes: int) -> Iterator[Chunk]:
        """Yield the chunks of an array; `result` is not looked at where this rank gets none."""
        for begin, end in chunk_cuts(given.size, chunk_bytes, self.item):

            def chunk(scratch: Scratch, begin: int = begin, end: int = end) -> Stages:
                gets_result = self.root in (None, self.group.rank)
                target = result[begin:end] if gets_result else scratch.take(end - begin)
                return self.stages(given[begin:end], target, scratch)

            yield chunk

    def stages(self, given: Memory, result: Memory, scratch: Scratch) -> Stages:
        """Reduce one chunk."""
        group = self.group
        plan, steps = self._planned(given.size // self.item)
        counts = [count * self.item for count in plan.counts[group.host]]
        local_rank = group.inner.rank
        begin = sum(counts[:local_rank])
        mine = result[begin : begin + counts[local_rank]]
        group.reduce_inside(self.kernels.inside, given, mine, plan.counts[group.host])
        for tier, step in enumerate(steps, 1):
            yield from self._out(step, result, scratch, is_last=tier == self.num_tiers)
        for step in reversed(steps):
            if step.goes_back:
                yield from self._back(step, result, scratch)
        if self.root is None or self.root in group.local:
            group.gather_inside(mine, result, counts)

    def _planned(self, num_elements: int) -> tuple[TierPlan, list[RankStep]]:
        if num_elements not in self._steps:
            plan = make_plan(self.topology, num_elements, self.way)
            self._steps[num_elements] = plan, plan.steps_of(self.group.rank, self.root_host)
        return self._steps[num_elements]

    def _out(self, step: RankStep, result: Memory, scratch: Scratch, *, is_last: bool) -> Stages:
        """Send partial sums, and add those that come."""
        packed = self._packed(step.sends, result, scratch)
        received = [
            (peer, scratch.take((end - begin) * self.wire.itemsize))
            for peer, begin, end in step.recvs
        ]
        complete = self.group._start_exchange(
            [(peer, packed[begin]) for peer, begin, _ in step.sends], received
        )
        for _ in range(1 if step.goes_back else TURNS):
            yield
        complete()
        kernel = self.kernels.last if is_last else self.kernels.between
        parts = iter(received)
        for each in step.sums:
            mine = self._view(result, each.begin, each.end)
            own = mine
            if self.wire.rounds and len(each.owners) > 1:
                # All of them add the same numbers, so this one rounds its own as the others do.
                own = self.wire.unpack(packed[each.begin], scratch)
            sources = [
                own if rank == self.group.rank else self.wire.unpack(next(parts)[1], scratch)
                for rank in each.sources
            ]
            kernel.reduce(mine, sources)

    def _back(self, step: RankStep, result: Memory, scratch: Scratch) -> Stages:
        """Send sums back to those who gave to them, and get those of the others."""
        packed = self._packed(step.back_sends, result, scratch)
        for _, begin, end in step.back_sends:
            self.wire.unpack_into(packed[begin], self._view(result, begin, end))
        received = []
        for peer, begin, end in step.back_recvs:
            place = self._view(result, begin, end)
            received.append((peer, self._arrival(place, scratch), place))
        complete = self.group._start_exchange(
            [(peer, packed[begin]) for peer, begin, _ in step.back_sends],
            [(peer, memory) for peer, memory, _ in received],
        )
        yield
        complete()
        for _, memory, place in received:
            self.wire.unpack_into(memory, place)

    def _packed(self, spans: Sequence[Span], result: Memory, scratch: Scratch) -> dict[int, Memory]:
        """Bytes to send, by the first element; what goes to several ranks is packed once."""
        ends = {begin: end for _, begin, end in spans}
        return {
            begin: self.wire.pack(self._view(result, begin, end), scratch)
            for begin, end in ends.items()
        }

    def _arrival(self, place: Memory, scratch: Scratch) -> Memory:
        """Return where the packet of some elements arrives: in place, unless it is rounded."""
        if not self.wire.rounds:
            return place
        return scratch.take(place.size // self.item * self.wire.itemsize)

    def _view(self, result: Memory, begin: int, end: int) -> Memory:
        return result[begin * self.item : end * self.item]


def reduce_rows(topology: Topology, kernels: TierKernels, rows: Sequence[Memory]) -> Memory:
    """The reduction of the sums of hosts, in the order in which tiers add them."""
    units = list(rows)
    tiers = topology.tiers
    for tier in tiers:
        adding = kernels.last if tier is tiers[-1] else kernels.between
        joined = []
        for group in tier:
            joined.append(np.empty_like(units[0]))
            adding.reduce(joined[-1], [units[unit] for unit in group])
        units = joined
    return units[0]
