"""The one world of this process: `init()`, `shutdown()`, and questions to it.

    NEW --init()--> OPEN --shutdown()--> CLOSED --init()--> OPEN ...
                      |
                      `--fork()--> FORKED, in the child: every question raises `ForkedError`

Each `init()` is a new generation: all ranks call it equally often, so they count alike, and a rank
that was left behind by an earlier world cannot be taken for one of this.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from kadril.config import Config
from kadril.errors import (
    AlreadyInitializedError,
    ClosedError,
    ForkedError,
    KadrilError,
    NotInitializedError,
    PeerError,
    RendezvousError,
    StateError,
)
from kadril.transport.recording import record_in_memory, start_recording
from kadril.world.heap import keep_heap
from kadril.world.identity import Identity, find_identity
from kadril.world.logs import set_up_logging
from kadril.world.membership import Membership, find_membership
from kadril.world.process_group import find_member, is_inherited
from kadril.world.world import World, open_world

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

__all__ = [
    "cross_rank",
    "cross_size",
    "current",
    "init",
    "is_initialized",
    "is_main",
    "lend",
    "local_rank",
    "local_size",
    "make_current",
    "rank",
    "shared_empty",
    "shutdown",
    "size",
]

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - as files of code are
CALLER_SECONDS = 1.0  # that threads have to come back from their calls at the end of a program

logger = logging.getLogger("kadril")

# Meetings in a row that may fail although no rank has died, before that is raised.
MAX_FAILED_MEETINGS = 5


class Session:
    """Session of this process: its present world, and what it keeps from one to the next."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.world: World | None = None
        self.identity: Identity | None = None
        self.was_open = False
        self.is_lent = False  # the world is somebody else's to close
        self.num_generations = 0
        self.forked_from = 0  # process id of the rank whose child this is, or 0

    def mark_forked(self) -> None:
        """Forget the parent's world in the child of a fork, without touching it."""
        self.lock = (
            threading.RLock()
        )  # the parent's may have been held by a thread that is not here
        if self.world is not None:
            self.forked_from = os.getppid()
            # Kept alive: its destructors would close, in the child, what is the parent's.
            _kept_for_ever.append(self.world)
            self.world = None


_kept_for_ever: list[World] = []
_session = Session()


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    job: str | None = None,
    secret_file: str | None = None,
    config: Config | None = None,
    **options: Any,
) -> World:
    """Meet the other ranks; collective.

    Who this process is comes from the arguments, or else from the launcher: `kadril run`, torchrun,
    mpirun, srun; or else from torch.distributed, if `init_process_group()` was called before.
    Without any of them it is a world of one; where the environment shows other ranks that cannot be
    met, it is an error. Called again with equal options it gives the same world.

    Args:
        rank: of this process; with `size`, instead of a launcher's word.
        size: number of ranks.
        rendezvous: where ranks that were given explicitly meet: "unix:<path>" or
            "tcp:<host>:<port>". "torch" stands for the store of torch.distributed; rank and size
            are those of its default process group then, and need not be given.
        job: name of the job, for ranks that were given explicitly.
        secret_file: file with the job's 32-byte secret, for ranks that were given explicitly.
        config: all options at once; otherwise those of the environment.
        **options: single options of `Config`, which win over the environment.

    Raises:
        RendezvousError: a rank did not come, or contradicts the others.
        ConfigError: an option, or a launcher's variable, makes no sense; or there are signs of
            other ranks and no way to meet them.
        AlreadyInitializedError: called again with other options.
        ForkedError: called in a child made by fork of a rank.
        TypeError: an option that does not exist, or `config` together with options.
    """
    if config is not None and options:
        raise TypeError(f"give config or single options, not both: {', '.join(sorted(options))}")
    with _session.lock:
        check_not_forked("init()")
        if _session.is_lent and _session.world is not None:
            return _session.world
        config = Config.from_environment(**options) if config is None else config
        is_asked = any(each is not None for each in (rank, size, rendezvous, job, secret_file))
        place = partial(find_identity, rank=rank, size=size, rendezvous=rendezvous)
        find = partial(place, job=job, secret_file=secret_file)
        if _session.world is not None and not _session.world.is_closed:
            check_equal(_session.world, config, find() if is_asked else None)
            check_still_alone(_session.world)
            return _session.world
        if rank is None:
            check_own_group()
        return open_next(find(), config)


def open_next(identity: Identity, config: Config) -> World:
    """Open the next world of this process."""
    set_up_logging(config)
    if config.keep_heap:
        keep_heap()
    membership = find_membership() if identity.source == "kadril run" else None
    if membership is not None:
        world, identity = open_elastic(membership, identity, config)
    else:
        if identity.size is not None:
            start_recording(identity.rank, identity.size)
        generation = identity.generation + _session.num_generations
        _session.num_generations += 1
        world = open_world(identity, config, generation)
        record_in_memory(world.rank, world.size)
    adopt(world, identity)
    return world


def open_elastic(membership: Membership, told: Identity, config: Config) -> tuple[World, Identity]:
    """Open the next generation that this process is in.

    A rank may die while the others meet: they wait for the generation after that.

    Raises:
        RendezvousError: ranks could not meet, although none of them is known to have died.
        SystemExit: there is no place for this process.
    """
    failures = 0
    while True:
        roster = membership.next_roster()
        identity = roster.identity(told)
        start_recording(roster.rank, roster.size)
        try:
            world = open_world(identity, config, roster.generation, membership.is_cancelled)
        except (RendezvousError, PeerError) as error:
            if not membership.is_cancelled():
                failures += 1
                if failures == MAX_FAILED_MEETINGS:
                    raise
            logger.info("elastic: generation %d did not meet: %s", roster.generation, error)
            continue
        roster.write_to(os.environ)
        return world, identity


def make_current(world: World) -> None:
    """Make a world of `open_local` or `open_mpi` the one that `current()` gives.

    Raises:
        AlreadyInitializedError: there is another one.
    """
    take_over(world)
    record_in_memory(world.rank, world.size)


def take_over(world: World) -> None:
    """Do what `make_current` does, without a flight record."""
    with _session.lock:
        check_not_forked("make_current()")
        if (
            _session.world is not None
            and not _session.world.is_closed
            and _session.world is not world
        ):
            raise AlreadyInitializedError("this process has a world; call kadril.shutdown() first")
        adopt(world, None)


@contextlib.contextmanager
def lend(world: World) -> Iterator[None]:
    """Make a world the one of `current()` for a while; it stays its owner's to close.

    Raises:
        AlreadyInitializedError: there is another one.
    """
    take_over(world)
    _session.is_lent = True
    try:
        yield
    finally:
        with _session.lock:
            _session.is_lent = False
            _session.world = None


def adopt(world: World, identity: Identity | None) -> None:
    """Remember a world as the one of this process."""
    _session.world = world
    _session.identity = identity
    _session.was_open = True


def check_not_forked(operation: str) -> None:
    """Raise `ForkedError` in a child made by fork of a process that had a world."""
    if _session.forked_from:
        raise ForkedError(
            f"{operation} in process {os.getpid()}, which a rank (process {_session.forked_from})"
            " made by fork. A child is not a rank: call kadril in the parent, or start the child"
            " with multiprocessing's 'spawn'"
        )


def check_own_group() -> None:
    """Raise `ForkedError` where the process group of torch.distributed is the parent's."""
    if is_inherited():
        raise ForkedError(
            f"init() in process {os.getpid()}, made by fork of a process in which torch.distributed"
            " was initialized. A child is not a rank: call kadril in the parent, start the child"
            " with multiprocessing's 'spawn', or give it a process group of its own"
        )


def check_still_alone(world: World) -> None:
    """Raise where torch.distributed was initialized after `init()` had found nobody else.

    Raises:
        StateError: there are other ranks, and this world has one.
    """
    if world.source != "no launcher":
        return
    member = find_member()
    if member is not None and member.size > 1:
        raise StateError(
            f"kadril has a world of one, and torch.distributed is initialized as rank {member.rank}"
            f" of {member.size}: kadril.init() came before init_process_group(). Call"
            " init_process_group() first; or kadril.shutdown(), and kadril.init() again"
        )


def check_equal(world: World, config: Config, identity: Identity | None) -> None:
    """Raise `AlreadyInitializedError` where `init()` asks for another world than there is."""
    differences = [
        f"{field.name} is {getattr(world.config, field.name)!r}, asked for"
        f" {getattr(config, field.name)!r}"
        for field in dataclasses.fields(config)
        if getattr(world.config, field.name) != getattr(config, field.name)
    ]
    known = _session.identity
    if identity is not None and known is not None and identity != known:
        differences.append(f"it is {describe(known)}, asked for {describe(identity)}")
    if differences:
        raise AlreadyInitializedError(
            f"kadril.init() was called before with other options: {'; '.join(differences)}."
            " Call kadril.shutdown() first, or leave the options out"
        )


def describe(identity: Identity) -> str:
    """An identity in a few words."""
    return f"rank {identity.rank} of {identity.size} by {identity.source}"


def shutdown() -> None:
    """Leave the world; local. Does nothing where there is none, so it may be called again.

    A world that is lent to this process stays open.
    """
    with _session.lock:
        check_not_forked("shutdown()")
        if _session.is_lent:
            return
        world, _session.world = _session.world, None
        if world is not None:
            world.close()


def is_initialized() -> bool:
    """Whether this process has an open world."""
    return _session.world is not None and not _session.world.is_closed


def current() -> World:
    """The world of this process.

    Raises:
        NotInitializedError: `init()` was not called.
        ClosedError: it was, and then `shutdown()` too.
        ForkedError: this is a child made by fork of a rank.
        StateError: it was alone, and torch.distributed has several ranks since.
    """
    world = _session.world
    if world is not None and not world.is_closed:
        check_still_alone(world)
        return world
    check_not_forked("use of kadril")
    if _session.was_open:
        raise ClosedError("kadril was shut down; call kadril.init() again")
    raise NotInitializedError("kadril is not initialized; call kadril.init() first")


def rank() -> int:
    """Rank of this process, from 0. Raises as `current`."""
    return current().rank


def size() -> int:
    """Number of ranks. Raises as `current`."""
    return current().size


def local_rank() -> int:
    """Position of this rank on its host. Raises as `current`."""
    return current().local_rank


def local_size() -> int:
    """Number of ranks on this host. Raises as `current`."""
    return current().local_size


def cross_rank() -> int:
    """Position of this host among hosts that have this local rank. Raises as `current`."""
    return current().cross_rank


def cross_size() -> int:
    """Number of hosts that have this local rank. Raises as `current`."""
    return current().cross_size


def is_main() -> bool:
    """Whether this is rank 0, which prints and writes for all. Raises as `current`."""
    return current().is_main


@overload
def shared_empty(shape: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor: ...


@overload
def shared_empty(
    shape: int | Sequence[int], dtype: np.dtype[Any] | type[Any] | str
) -> npt.NDArray[Any]: ...


def shared_empty(shape: int | Sequence[int], dtype: Any = None) -> Any:
    """Return an array in memory that the ranks of this host share; see `World.shared_empty`."""
    return current().shared_empty(shape, dtype)


def close_at_exit() -> None:
    """Leave quietly: a program that ends need not hear that its peers ended first."""
    if _session.forked_from:
        return
    with contextlib.suppress(KadrilError, OSError):
        shutdown()
    await_callers(CALLER_SECONDS)


def await_callers(seconds: float) -> None:
    """Give threads that were in a call of kadril time to hear of its end.

    The interpreter ends a thread that comes back to it later by unwinding its stack, which the
    core's frames on it answer with an abort of the whole process.
    """
    deadline = time.monotonic() + seconds
    while has_callers() and time.monotonic() < deadline:
        time.sleep(0.001)


def has_callers() -> bool:
    """Whether another thread of the program is in a function of kadril."""
    others = {
        thread.ident
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.name.startswith("kadril")
    }
    # Not in a variable: this frame would hold itself, and with it all that its callers refer to.
    return any(
        frame.f_code.co_filename.startswith(PACKAGE)
        for ident, frame in sys._current_frames().items()
        if ident in others
    )


os.register_at_fork(after_in_child=_session.mark_forked)
atexit.register(close_at_exit)
