"""The learner of this process: `init()`, `finalize()`, and who it is."""

from __future__ import annotations

import logging
import os
import socket
from typing import NamedTuple

import torch

from kadril import world as _world
from kadril.ddl.devices import device_of, find_accelerator
from kadril.ddl.options import Options, read_options
from kadril.ddl.session import Session
from kadril.ddl.topology import (
    check_product,
    default_mode,
    describe_hosts,
    find_contradiction,
    tiers_of,
)
from kadril.errors import AlreadyInitializedError, NotInitializedError
from kadril.transport.agreement import allgather_json, check_same
from kadril.world import World

__all__ = [
    "Learner",
    "current_session",
    "finalize",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "num_hosts",
    "rank",
    "size",
]

logger = logging.getLogger("kadril")

ADVICE = "Give every learner the same arguments of init(), and every host the same DDL_OPTIONS"


class Learner(NamedTuple):
    """Result of `init()`: `rank, size, device_id = init(4)`.

    Attributes:
        rank: of this process.
        size: number of learners.
        device_id: local rank modulo the number of accelerators per host; only a number where there
            are none.
    """

    rank: int
    size: int
    device_id: int

    @property
    def device(self) -> torch.device:
        """The accelerator of that number, or the CPU where torch sees no accelerator."""
        return device_of(self.device_id)


class Started(NamedTuple):
    """The session of this process, with what it was started by."""

    session: Session
    learner: Learner
    num_gpu: int
    options: Options
    owns_world: bool


class Holder:
    """Holds what `init()` started, if it did."""

    __slots__ = ("started",)

    def __init__(self) -> None:
        self.started: Started | None = None


holder = Holder()


def init(num_gpu: int | str = 0, mode: str | None = None) -> Learner:
    """Meet the other learners; collective. Called again with the same arguments it does no harm.

    Works under `kadril run`, mpirun, torchrun and srun, in a world that `kadril.init()` has opened,
    or alone. Options are those of `mode` and of the variable DDL_OPTIONS; see `options.py`.

    Args:
        num_gpu: accelerators to use on each host; 0 for as many as learners run there. A text is
            taken for `mode`, as `init("-mode p")` of later versions of DDL.
        mode: options, such as "-mode n:4x3 -dump_iter 100".

    Returns:
        Rank, size and device id: local rank % num_gpu. Without accelerators the id is only a
        number; `Learner.device` is the CPU then.

    Raises:
        ConfigError: an unknown option, or the product of the dimensions is not the number
            of learners; on every rank.
        MismatchError: learners were given different arguments; on every rank.
        AlreadyInitializedError: called again with other arguments.
        RendezvousError: a rank did not come.
    """
    if isinstance(num_gpu, str):
        if mode is not None:
            raise TypeError("init() has options in both arguments; give num_gpu as a number")
        mode, num_gpu = num_gpu, 0
    if num_gpu < 0:
        raise ValueError(f"num_gpu must be 0 or more, got {num_gpu}")
    options, remarks = read_options(mode, os.environ)
    if is_initialized():
        return same_learner(num_gpu, options)
    owns_world = not _world.is_initialized()
    world = open_world(options) if owns_world else _world.current()
    try:
        session = start(world, num_gpu, options)
    except BaseException:
        if owns_world:
            _world.shutdown()
        raise
    learner = Learner(world.rank, world.size, world.local_rank % (num_gpu or world.local_size))
    holder.started = Started(session, learner, num_gpu, options, owns_world)
    world.on_close(close_session)
    if world.is_main:
        for remark in remarks:
            logger.warning("kadril.ddl: %s", remark)
        tell_of_start(session, num_gpu)
    return learner


def open_world(options: Options) -> World:
    """Open the world, with the racks that a mode names."""
    tiers = "" if options.mode is None else tiers_of(options.mode)
    return _world.init(tiers=tiers) if tiers else _world.init()


def start(world: World, num_gpu: int, options: Options) -> Session:
    """Make the session of a world; collective."""
    asked = [f"num_gpu={num_gpu}", f"options {str(options) or '(none)'}"]
    check_same(world.transport, "kadril.ddl.init", asked, advice=ADVICE)
    mode = options.mode or default_mode(world.layout)
    check_product(mode, world.layout)
    hosts = allgather_json(world.transport, socket.gethostname(), "ddl.hosts")
    return Session(world, options, mode, hosts)


def tell_of_start(session: Session, num_gpu: int) -> None:
    """Log what was found, where it differs from the options or these ask for it."""
    layout, mode = session.world.layout, session.mode
    contradiction = find_contradiction(mode, layout)
    if contradiction:
        logger.warning("kadril.ddl: %s", contradiction)
    tiers = tiers_of(mode)
    if tiers and len(layout.hosts) > 1 and session.world.config.tiers != tiers:
        logger.warning(
            "kadril.ddl: the racks of -mode %s are not used, since the world was opened before;"
            " set KADRIL_TIERS=%s",
            mode,
            tiers,
        )
    accelerator = find_accelerator()
    crowded = max(map(len, layout.hosts))
    if accelerator and num_gpu and crowded > num_gpu:
        logger.warning("kadril.ddl: %d learners share %d accelerators of a host", crowded, num_gpu)
    if session.options.dbg_level:
        where = f"on {accelerator}" if accelerator else "on CPUs: device ids are only numbers"
        session.tell(
            f"ddl: {layout.size} learners on {describe_hosts(layout)}, {where}; -mode {mode},"
            f" transport {session.transport.kind}"
        )


def same_learner(num_gpu: int, options: Options) -> Learner:
    """The learner that there is.

    Raises:
        AlreadyInitializedError: it was started with other arguments.
    """
    started = find_started()
    if (started.num_gpu, started.options) != (num_gpu, options):
        raise AlreadyInitializedError(
            f"kadril.ddl was initialized with num_gpu={started.num_gpu} and"
            f" {str(started.options) or 'no options'!r}, and is asked for num_gpu={num_gpu} and"
            f" {str(options) or 'no options'!r}. Call finalize() first"
        )
    return started.learner


def close_session() -> None:
    """Close the session, if there is one: its world is closing, or the learner leaves."""
    started, holder.started = holder.started, None
    if started is not None:
        started.session.close()


def find_started() -> Started:
    """Return what `init()` started.

    Raises:
        NotInitializedError: it was not called, or `finalize()` was since.
        ForkedError: this is a child made by fork of a rank.
    """
    started = holder.started
    if started is None:
        raise NotInitializedError("kadril.ddl is not initialized; call kadril.ddl.init() first")
    started.session.world.check_usable("kadril.ddl")
    return started


def current_session() -> Session:
    """The session of this process. Raises as `rank`."""
    return find_started().session


def finalize() -> None:
    """End the session, and leave the world if `init()` opened it; local. May be called again."""
    started = holder.started
    close_session()
    if started is not None and started.owns_world:
        _world.shutdown()


def is_initialized() -> bool:
    """Whether there is a session."""
    return holder.started is not None


def rank() -> int:
    """Rank of this learner. Raises `NotInitializedError` before `init()`."""
    return current_session().world.rank


def size() -> int:
    """Number of learners. Raises as `rank`."""
    return current_session().world.size


def local_rank() -> int:
    """Position of this learner on its host. Raises as `rank`."""
    return current_session().world.local_rank


def local_size() -> int:
    """Number of learners on this host. Raises as `rank`."""
    return current_session().world.local_size


def num_hosts() -> int:
    """Number of hosts. Raises as `rank`."""
    return len(current_session().world.layout.hosts)
