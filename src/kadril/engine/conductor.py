"""The conductor of one process set, as Python sees it: submit named requests, wait for them."""

from __future__ import annotations

import errno
import functools
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kadril import _native
from kadril.config import Config
from kadril.engine.lane import OWN_THREADS, TransportLane, name_own_thread
from kadril.engine.request import Reduction, Verb
from kadril.errors import ForkedError, NoRoomError
from kadril.frameworks import framework_folders
from kadril.transport.base import Transport
from kadril.transport.buffer import Array, as_buffer
from kadril.transport.failures import to_exception
from kadril.transport.standpoint import (
    call_site,
    describe_group,
    helper_threads,
    num_calling_threads,
)

__all__ = ["ProcessSetConductor"]

logger = logging.getLogger("kadril")

# Packages through which a program's own line calls the engine.
_native.set_package_paths(
    [f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], *framework_folders())]
)

FIRST_WAIT = 0.2  # seconds; a wait that lasts longer is told to the other ranks
WAIT_SLICE = 3600.0  # seconds; a signal ends a wait early, so that Python can look at it


class ConductorOptions(NamedTuple):
    """Arguments that a native conductor takes over either kind of lane, in its order.

    Attributes:
        patience: seconds, see `Config`.
        stall_warning: seconds; 0 where nobody is warned.
        fusion_threshold: bytes, see `Config`.
        cache_capacity: number of requests.
        world_ranks: world rank of each member.
        report: called with what the log should say.
    """

    patience: float
    stall_warning: float
    fusion_threshold: int
    cache_capacity: int
    world_ranks: Sequence[int]
    report: Callable[[str], None]


class ProcessSetConductor:
    """Takes the requests of one process set.

    Attributes:
        transport: between its members; the conductor's alone.
        ranks: world rank of each member.
        rank: of this process among the members.
        size: number of members.
    """

    def __init__(self, transport: Transport, config: Config) -> None:
        self.transport = transport
        self.ranks = transport.world_ranks
        self.rank = transport.rank
        self.size = transport.size
        self._group = describe_group(self.ranks, "process set")
        self._num_unnamed: Counter[int] = Counter()
        self._num_joins = 0
        self._num_deadlocks = 0
        self._lane = TransportLane(transport) if transport.shared_memory is None else None
        options = ConductorOptions(
            patience=config.patience,
            stall_warning=config.stall_warning if config.stall_check else 0.0,
            fusion_threshold=config.fusion_threshold,
            cache_capacity=config.cache_capacity,
            world_ranks=list(self.ranks),
            report=report,
        )
        memory = transport.shared_memory
        try:
            if memory is not None:
                self.native = _native.Conductor.over_channel(memory.channel, memory.rank, *options)
            else:
                self.native = _native.Conductor.over_transport(
                    self._lane, self.size, self.rank, *options
                )
        except RuntimeError as error:
            if str(error) != os.strerror(errno.EAGAIN):
                raise
            raise NoRoomError(
                "the thread of the engine could not be started: the limit of processes and threads"
                " (ulimit -u) or of memory (ulimit -v, or that of the container) is reached"
            ) from error
        if memory is None:
            transport.on_late = functools.partial(report_late, weakref.ref(self))

    @property
    def error(self) -> BaseException | None:
        """Error of a transport written in Python by which this set has ended, if one has."""
        return None if self._lane is None else self._lane.error

    def submit(
        self,
        verb: int,
        tensors: Array | Sequence[Array] = (),
        targets: Array | Sequence[Array] | None = None,
        *,
        name: str | None = None,
        reduction: int = Reduction.SUM,
        root: int = -1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        splits: Sequence[int] | None = None,
        note: str = "",
        is_group: bool = False,
    ) -> _native.Completion:
        """Ask for something; every member asks for it under the same name, in any order.

        Tensors stay as they are, and alive, until the completion is done. Without a name the
        request is the n-th un-named one of its kind in this set, and meets the n-th of the others.

        Args:
            verb: a `Verb`.
            tensors: contiguous, in CPU memory; a list is served all or nothing.
            targets: where results go; in place where None.
            name: what the members know it by.
            reduction: a `Reduction`.
            root: the member that broadcasts.
            prescale: factor for what each member gives.
            postscale: factor for the result.
            splits: of an all-to-all: rows for each member.
            note: text that all members must give alike.
            is_group: whether the name is that of a group, which is apart from names of tensors.

        Raises:
            ValueError: the name is in use by a request under way.
            KadrilError: the set has ended, for the reason that it says.
            UnsupportedError: no such operation for this dtype.
        """
        is_named = name is not None
        if name is None:
            name = self._next_unnamed(verb)
        if not isinstance(tensors, list):
            tensors = list(tensors) if isinstance(tensors, tuple) else tensors
        operation = _native.Operation(
            verb,
            reduction=int(reduction),
            root=root,
            prescale=prescale,
            postscale=postscale,
            splits=splits or (),
            note=note,
            is_group=is_group,
        )
        completion = self._submit_natively(operation, tensors, targets, name, is_named)
        if not is_named:  # one that was refused does not count: nobody else knows of it
            self._num_unnamed[verb] += 1
        return completion

    def _submit_natively(
        self, operation: _native.Operation, tensors: Any, targets: Any, name: str, is_named: bool
    ) -> _native.Completion:
        """Submit to the core, which takes most tensors as they are, or raise why it refuses."""
        submit = self.native.submit
        completion = submit(operation, tensors, targets, name, is_named)
        if completion is NotImplemented:
            tensors, targets = addressed(tensors), addressed(targets)
            completion = submit(operation, tensors, targets, name, is_named)
        if type(completion) is _native.Completion:
            return completion
        raise to_exception(completion, self.ranks)

    def wait(self, completion: _native.Completion) -> None:
        """Sleep until a request is done.

        Raises:
            MismatchError: members asked for different things under its name, or every member sleeps
                on a request that another one cannot make any more.
            DeadlockError: members wait for each other, some of them in other groups.
            PeerLost, Stalled, Revoked: a member is gone, late, or gave up.
            ClosedError: the engine was shut down.
        """
        state = completion.wait(FIRST_WAIT) or self._wait_blocked(completion)
        if state == 1:
            return
        if state == 3:
            raise ForkedError(
                "this process was made by fork() from a rank, and nobody here serves its requests;"
                " wait for them in the parent"
            )
        if state == 2:
            failure = completion.failure
            if failure is not None:
                raise to_exception(failure, self.ranks)

    def _wait_blocked(self, completion: _native.Completion) -> int:
        """Sleep until a request is done, for all the world to see; gives the state of its end."""
        where = f"of {self._group} at {call_site()}"
        blocked = completion.block(where, self.ranks[self.rank], FIRST_WAIT)
        try:
            state = 0
            while not state:
                state = blocked.wait(WAIT_SLICE, num_user_threads(), num_calling_threads())
            return state
        finally:
            blocked.end()

    def restart_count(self) -> None:
        """Count un-named requests anew; all members do so after the same join."""
        self._num_joins += 1
        self._num_unnamed.clear()

    def _next_unnamed(self, verb: int) -> str:
        """The name of an un-named request, unless it is refused."""
        num_deadlocks = self.native.num_deadlocks
        if num_deadlocks != self._num_deadlocks:
            self._num_deadlocks = num_deadlocks
            self._num_unnamed.clear()  # members have made different numbers of them
        name = f"noname.{self._num_unnamed[verb]}"
        num_counts = self._num_joins + num_deadlocks  # so far, and the same on all members
        return f"{name} of count {num_counts + 1}" if num_counts else name

    def agree(self, what: str, note: str) -> None:
        """Return when every member has said the same.

        Raises:
            MismatchError: they said different things.
        """
        self.wait(self.submit(Verb.BARRIER, [], name=what, note=note))

    def close(self) -> None:
        """Leave the set; requests under way fail."""
        self.native.close()
        self.transport.close()


def report(text: str) -> None:
    """Tell a person; called by the native engine's thread."""
    name_own_thread()  # since logging makes a thread object of it
    logger.warning(text)


def num_user_threads() -> int:
    """Number of threads that may submit something: Python's, without those known not to."""
    helpers = helper_threads()
    return sum(
        not (thread.name.startswith(OWN_THREADS) or thread.ident in helpers)
        for thread in threading.enumerate()
    )


def report_late(
    reference: weakref.ref[ProcessSetConductor], late: Sequence[int], waited: float
) -> None:
    """Have the conductor say which requests wait for ranks that do not come."""
    conductor = reference()
    if conductor is not None:
        members = [conductor.ranks.index(rank) for rank in late]
        conductor.native.report_late(members, waited)


def addressed(tensors: Any) -> Any:
    """Tensors as (address, dtype code, shape), after a closer look that may raise."""
    if tensors is None:
        return None
    if isinstance(tensors, list):
        return [addressed(tensor) for tensor in tensors]
    buffer = as_buffer(tensors)
    return (buffer.address, buffer.dtype.code, tuple(buffer.shape))
