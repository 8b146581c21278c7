"""A session: what `init()` started in this process; it runs and records all-reduces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kadril.ddl.call_log import CallLog, CallRecord
from kadril.ddl.checking import floors_of, largest_inputs
from kadril.ddl.exploration import Exploration
from kadril.ddl.failure import CheckedCall, raise_where_wrong
from kadril.ddl.links import probe_links
from kadril.ddl.options import Mode, Options
from kadril.ddl.packing import PackedArrays, parts_of
from kadril.ddl.parameters import ParameterCall, compared
from kadril.ddl.report import SlowLearners, describe_slow, describe_statistics
from kadril.ddl.ways import Way, baseline_of, reference_of, tier_times, ways_of
from kadril.transport.base import Transport
from kadril.world import World

__all__ = ["Reduction", "Session"]


class Reduction(NamedTuple):
    """Reduction that a call of `all_reduce` or `all_reduce_n` asks for.

    Attributes:
        call: what learners must agree on.
        packed: what is added up, in place.
        scale: what sums are multiplied by.
        mpi: whether to run the baseline instead.
        check: the largest error that is allowed; 0 does not check.
    """

    call: ParameterCall
    packed: Sequence[PackedArrays]
    scale: float
    mpi: bool
    check: float

    @property
    def num_bytes(self) -> int:
        """Size of all tensors together."""
        return sum(each.flat.nbytes for each in self.packed)


class Session:
    """Runs all-reduces as its options say.

    Attributes:
        world: whose ranks are the learners.
        options: of `init()`.
        mode: of the options, or the default.
        transport: over which learners compare their calls.
        last: the last all-reduce, if there was one.
    """

    def __init__(self, world: World, options: Options, mode: Mode, hosts: Sequence[str]) -> None:
        self.world = world
        self.options = options
        self.mode = mode
        self.last: CallRecord | None = None
        self._hosts = hosts
        self._own_flat = world.transport.open_flat()
        self._flat = self._own_flat or world.transport
        ways = ways_of(world, self._flat)
        self._exploration = Exploration(ways, world.transport) if mode.way == "explore" else None
        self._way = ways["tiers" if self._exploration else mode.way]
        if self._exploration is not None:
            self._tune()
        self._baseline = baseline_of(world, self._flat)
        self._num_calls = 0
        self._report_log = CallLog()
        self._look_log = CallLog()
        self._slow = SlowLearners()

    @property
    def transport(self) -> Transport:
        """The transport over which learners compare their calls."""
        return self._way.transport or self.world.transport

    def reduce(self, reduction: Reduction) -> None:
        """Add up packed arrays over all ranks, in place; collective.

        Raises:
            MismatchError: learners reduce different parameters; on all of them.
            CheckError: the result is not that of the reference; on all of them.
            PeerError: a rank is dead, late, or gave the group up.
        """
        way = self._choose(reduction)
        inputs = copies_of(reduction.packed) if reduction.check else []
        begin = time.perf_counter()
        self._run(way, reduction, reduction.packed)
        seconds = time.perf_counter() - begin
        record = CallRecord(way.name, reduction.num_bytes, seconds, tier_times(way))
        self._remember(record, way)
        if reduction.check:
            self._check(reduction, inputs, way)

    def broadcast(self, call: ParameterCall, packed: Sequence[PackedArrays]) -> None:
        """Overwrite packed arrays by those of rank 0; collective."""
        transport = self.transport
        with compared(transport, call):
            for each in packed:
                transport.broadcast(each.flat, 0, name=call.name)
            if not packed:
                transport.barrier(name=call.name)

    def _choose(self, reduction: Reduction) -> Way:
        if reduction.mpi:
            return self._baseline
        if self._exploration is not None:
            return self._exploration.way_for(reduction.num_bytes)
        return self._way

    def _run(self, way: Way, reduction: Reduction, packed: Sequence[PackedArrays]) -> None:
        call = reduction.call
        if way.transport is not self.transport or not packed:
            # Learners that go different ways would wait for each other forever, so they meet where
            # all of them come. MPI itself compares nothing and names nobody.
            with compared(self.transport, call):
                self.transport.barrier(name=call.name)
        with compared(way.transport or self.transport, call):
            for each in packed:
                way.run(each.flat, reduction.scale, call.name)

    def _remember(self, record: CallRecord, way: Way) -> None:
        """Log a call, and report where it is time; collective there."""
        self.last = record
        self._num_calls += 1
        if self._exploration is not None and way is not self._baseline:
            self._exploration.note(record.num_bytes, way, record.seconds)
        if self.options.dbg_level == 2:
            self.tell(
                f"ddl: all-reduce {self._num_calls}, {record.num_bytes} bytes by {record.way} in"
                f" {1e3 * record.seconds:.3f} ms"
            )
        if self.options.dump_iter:
            self._report_log.add(record)
            if self._num_calls % self.options.dump_iter == 0:
                self._report()
        if self.options.rebind_iter:
            self._look_log.add(record)
            if self._num_calls % self.options.rebind_iter == 0:
                self._look_for_slow()

    def _report(self) -> None:
        """Print what `-dump_iter` asks for; collective."""
        layout = self.world.layout
        found = self._report_log.take(self.transport)
        links = probe_links(self._flat, layout) if len(layout.hosts) > 1 else []
        self.tell(describe_statistics(found, self._num_calls, links, layout, self._hosts))
        if self._exploration is not None and self.options.dbg_level:
            self.tell(f"ddl:   chosen so far: {self._exploration.choices()}")

    def _look_for_slow(self) -> None:
        """Look for a learner that is slow again and again; collective."""
        found = self._look_log.take(self.transport)
        rank = self._slow.look(found)
        if rank is None:
            return
        self.tell(describe_slow(found, rank, self.world.layout, self._hosts))
        if self._exploration is not None:
            self._exploration.forget()

    def _tune(self) -> None:
        """Choose ways by the speed of the tiers, for mode p; collective."""
        lines = self.world.transport.tune()
        if lines and self.options.dbg_level:
            self.tell("\n".join(f"ddl: {line}" for line in lines))

    def _check(self, reduction: Reduction, inputs: Sequence[PackedArrays], way: Way) -> None:
        """Compare a result with that of the reference; collective."""
        call, shapes = reduction.call, [each.shape for each in reduction.call.parameters]
        given = parts_of(inputs, shapes)
        floors = floors_of(given, largest_inputs(given, self.transport))
        reference = reference_of(self.world, self._flat)
        expected = copies_of(inputs)
        for each in expected:
            reference.run(each.flat, reduction.scale, f"{call.name} reference")
        checked = CheckedCall(
            call=call,
            inputs=given,
            values=parts_of(reduction.packed, shapes),
            references=parts_of(expected, shapes),
            floors=floors,
            limit=reduction.check,
            way=way.name,
            against=reference.name,
            hosts=self._hosts,
        )
        raise_where_wrong(checked, self.transport, Path())

    def close(self) -> None:
        """Leave the group that was opened for it; local."""
        if self._own_flat is not None:
            self._own_flat.close()

    def tell(self, text: str) -> None:
        """Print on rank 0."""
        if self.world.is_main:
            print(text, flush=True)


def copies_of(packed: Sequence[PackedArrays]) -> list[PackedArrays]:
    """The same, in memory of their own."""
    return [each._replace(flat=each.flat.clone()) for each in packed]
