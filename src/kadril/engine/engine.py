"""The engine of a world: one conductor for each process set that this rank is in.

    set 0            all ranks, for the life of the engine
    set 1, 2, ...    made and removed together by all ranks

A set's number is the same on all ranks, also on those that are not in it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from kadril import _native
from kadril.engine.conductor import ProcessSetConductor
from kadril.engine.timeline import TimelineFile
from kadril.errors import ClosedError, StateError
from kadril.world import World

__all__ = ["GLOBAL_SET", "Engine", "engine_of"]

GLOBAL_SET = 0

_engines: WeakKeyDictionary[World, Engine] = WeakKeyDictionary()


class Engine:
    """Named requests between the ranks of a world; opening and closing are cheap.

    Collective to open. Attributes:
        world: whose ranks it serves.
        conductors: by number of the set, those that this rank is in.
        members: world ranks of every set, by its number.
        is_given_up: whether its ranks are about to leave it, since one of them is lost: nobody is
            to wait for what is under way, and nothing is to be begun.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.conductors: dict[int | None, ProcessSetConductor] = {}
        self.members: dict[int, tuple[int, ...]] = {}
        self.is_given_up = False
        self._timeline: TimelineFile | None = None
        self._mark_cycles = False
        self._lock = threading.RLock()
        self._is_closed = False
        self._open_set(tuple(range(world.size)))
        self._publish()

    @property
    def is_closed(self) -> bool:
        """Whether `close()` was called."""
        return self._is_closed

    @property
    def is_left(self) -> bool:
        """Whether its ranks have left it, or are about to."""
        return self._is_closed or self.is_given_up

    @property
    def everyone(self) -> ProcessSetConductor:
        """The conductor of all ranks."""
        return self.conductor(GLOBAL_SET)

    def conductor(self, set_id: int) -> ProcessSetConductor:
        """The conductor of a set.

        Raises:
            ValueError: there is no such set, or this rank is not in it.
            ClosedError: the engine was closed.
        """
        conductor = self.conductors.get(set_id)
        if conductor is not None:
            return conductor
        if self._is_closed:
            raise ClosedError("the engine was shut down; call init() again")
        if set_id not in self.members:
            raise ValueError(
                f"there is no process set {set_id}; there are {sorted(self.members)}. Add it with"
                " add_process_set() on all ranks first"
            )
        raise ValueError(
            f"rank {self.world.rank} is not in process set {set_id}, which has ranks"
            f" {list(self.members[set_id])}; only its members may call it"
        )

    def add_set(self, ranks: Sequence[int]) -> int:
        """Make a process set and give its number; all ranks of the world call it alike.

        Raises:
            ValueError: no ranks, one that does not exist or is given twice, or a set of the same
                ranks exists.
            MismatchError: ranks asked for different sets.
        """
        with self._lock:
            wanted = self._check_ranks(ranks)
            self.everyone.agree("add_process_set", f"ranks={list(wanted)}")
            set_id = self._open_set(wanted)
            self._publish()
            return set_id

    def remove_set(self, set_id: int) -> None:
        """Remove a process set; all ranks of the world call it alike.

        Raises:
            ValueError: there is no such set, or it is the one of all ranks.
            MismatchError: ranks asked for different sets to be removed.
        """
        with self._lock:
            if set_id not in self.members or set_id == GLOBAL_SET:
                raise ValueError(f"process set {set_id} cannot be removed; there is no such set")
            self.everyone.agree("remove_process_set", f"set={set_id}")
            del self.members[set_id]
            conductor = self.conductors.pop(set_id, None)
            self._publish()
            if conductor is not None:
                conductor.close()

    def start_timeline(self, path: str, mark_cycles: bool = False) -> None:
        """Write to a file what is done when, for all ranks; all of them call it alike.

        Raises:
            StateError: one is being written.
        """
        with self._lock:
            if self._timeline is not None:
                raise StateError(
                    f"a timeline is being written to {self._timeline.path}; stop it first"
                )
            self._timeline = TimelineFile.open(self.world, self.everyone, path)
            self._mark_cycles = mark_cycles
            for conductor in self.conductors.values():
                conductor.native.set_timeline(self._timeline.native, mark_cycles=mark_cycles)

    def stop_timeline(self) -> None:
        """End the timeline, where there is one; all ranks call it alike."""
        with self._lock:
            timeline, self._timeline = self._timeline, None
            if timeline is None:
                return
            for conductor in self.conductors.values():
                conductor.native.set_timeline(None, mark_cycles=False)
            timeline.finish(self.everyone)

    def close(self) -> None:
        """Leave all sets; local. Requests under way fail."""
        with self._lock:
            self._is_closed = True
            _native.retract_engine(id(self))
            for conductor in self.conductors.values():
                conductor.close()
            self.conductors.clear()
            if self._timeline is not None:
                self._timeline.close()
                self._timeline = None

    def _publish(self) -> None:
        """Tell the C interface which sets there are."""
        here = self.world
        facts = [here.rank, here.size, here.local_rank, here.local_size]
        facts += [here.cross_rank, here.cross_size, int(here.layout.is_homogeneous)]
        native = {each: conductor.native for each, conductor in self.conductors.items()}
        sets = [(each, ranks, native.get(each)) for each, ranks in self.members.items()]
        _native.publish_engine(id(self), facts, sets)

    def _check_ranks(self, ranks: Sequence[int]) -> tuple[int, ...]:
        wanted = tuple(sorted(ranks))
        if not wanted:
            raise ValueError("a process set needs at least one rank")
        if len(set(wanted)) < len(wanted):
            raise ValueError(f"a rank was given twice: {list(wanted)}")
        if wanted[0] < 0 or wanted[-1] >= self.world.size:
            raise ValueError(f"ranks {list(wanted)} are not all within 0 to {self.world.size - 1}")
        if wanted in self.members.values():
            raise ValueError(f"there is a process set of ranks {list(wanted)} already")
        return wanted

    def _open_set(self, ranks: tuple[int, ...]) -> int:
        # The first that is free, as Horovod's programs expect.
        set_id = next(each for each in itertools.count() if each not in self.members)
        is_member = self.world.rank in ranks
        transport = self.world.transport.split(0 if is_member else None)
        self.members[set_id] = ranks
        if transport is not None:
            conductor = ProcessSetConductor(transport, self.world.config)
            self.conductors[set_id] = conductor
            if self._timeline is not None:
                conductor.native.set_timeline(self._timeline.native, self._mark_cycles)
        return set_id


def engine_of(world: World) -> Engine:
    """The engine of a world, opened where there is none; then collective."""
    engine = _engines.get(world)
    if engine is None or engine.is_closed:
        engine = Engine(world)
        _engines[world] = engine
        world.on_close(engine.close)
    return engine
