"""The timeline: one trace file for all ranks, which opens in Perfetto and chrome://tracing.

Ranks of rank 0's host write to the file themselves, as they go; it is a whole JSON document at
every moment. Ranks of other hosts write to a file of their own, and hand it in at the end.

All times are those of rank 0's clock. On one host there is only one; the difference of another
host's clock is measured once, by the shortest of a few round trips.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kadril import _native
from kadril.engine.request import Verb

if TYPE_CHECKING:
    from kadril.engine.conductor import ProcessSetConductor
    from kadril.world import World

__all__ = ["TimelineFile"]

NUM_ROUND_TRIPS = 8


class TimelineFile:
    """The timeline of one rank.

    Attributes:
        path: of the file that all ranks share in the end.
        native: what the conductors write to.
    """

    def __init__(self, path: str, own_path: str, native: _native.Timeline, is_near: bool) -> None:
        self.path = path
        self.native: _native.Timeline | None = native
        self._own_path = own_path
        self._is_near = is_near

    @classmethod
    def open(cls, world: World, everyone: ProcessSetConductor, path: str) -> TimelineFile:
        """Begin; collective.

        Raises:
            OSError: rank 0 cannot write the file; raised there, the others get a `MismatchError`.
        """
        path = str(Path(path).absolute())
        is_near = world.layout.cross_rank(world.rank) == world.layout.cross_rank(0)
        problem: OSError | None = None
        if world.rank == 0:
            try:
                Path(path).write_text("[]")
            except OSError as error:
                problem = error
        try:
            everyone.agree("timeline.open", "cannot be written" if problem else "")
        except Exception:
            if problem is not None:
                raise problem from None
            raise
        if problem is not None:  # a world of one agrees with itself
            raise problem
        own_path = path
        if not is_near:
            descriptor, own_path = tempfile.mkstemp(prefix="kadril-timeline-", suffix=".json")
            with os.fdopen(descriptor, "w") as own:
                own.write("[]")
        origin = measure_origin(everyone, is_near)
        return cls(path, own_path, _native.Timeline(own_path, world.rank, origin), is_near)

    def finish(self, everyone: ProcessSetConductor) -> None:
        """Complete the file; collective."""
        text = self._read_own() if not self._is_near else b""
        self.close()
        mine = np.frombuffer(bytearray(text), dtype=np.uint8)
        completion = everyone.submit(Verb.ALLGATHER, [mine], name="timeline.finish")
        everyone.wait(completion)
        if everyone.rank != 0:
            return
        ((memory, _, _),) = completion.take_outputs()
        add_events(Path(self.path), bytes(memory), completion.received_splits)

    def close(self) -> None:
        """Write what is left; local."""
        if self.native is not None:
            self.native.write()
            self.native = None
        if not self._is_near:
            with contextlib.suppress(FileNotFoundError):
                Path(self._own_path).unlink()

    def _read_own(self) -> bytes:
        if self.native is not None:
            self.native.write()
        return Path(self._own_path).read_bytes()


def measure_origin(everyone: ProcessSetConductor, is_near: bool) -> int:
    """The moment, on this rank's clock, that is zero for all; collective.

    Rank 0 reads its clock after a barrier, and sends the time. So it read it between this rank's
    arrival at the barrier and the arrival of the time; of several tries, the shortest such interval
    gives the difference of the clocks best. Ranks of rank 0's host have the same clock.
    """
    shortest, offset = float("inf"), 0
    clock = np.zeros(1, dtype=np.int64)
    for trip in range(NUM_ROUND_TRIPS):
        before = time.monotonic_ns()
        everyone.agree(f"timeline.come.{trip}", "")
        clock[0] = time.monotonic_ns()
        everyone.wait(everyone.submit(Verb.BROADCAST, [clock], name="timeline.clock", root=0))
        after = time.monotonic_ns()
        if after - before < shortest:
            shortest, offset = after - before, int(clock[0]) - (before + after) // 2
    return int(clock[0]) - (0 if is_near else offset)


def add_events(path: Path, texts: bytes, lengths: list[int]) -> None:
    """Add what ranks of other hosts have handed in to the file."""
    events: list[object] = []
    position = 0
    for length in lengths:
        if length:
            events += json.loads(texts[position : position + length])
        position += length
    if not events:
        return
    whole = [*json.loads(path.read_text()), *events]
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("[\n" + ",\n".join(json.dumps(event) for event in whole) + "\n]")
    unfinished.replace(path)
