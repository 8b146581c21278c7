"""Set-up of the segment that the ranks of one host share.

    rank 0 makes the segment (memfd), every rank maps it     the descriptor goes over the hub
    every rank hands out a pidfd of itself                   so that a death is known at once
    all say which cores they may use                         so that they agree how to wait

Where one rank fails, all raise.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from typing import NamedTuple

from kadril import _native
from kadril.config import Config
from kadril.errors import RendezvousError
from kadril.transport.agreement import Peers, raise_on_all
from kadril.transport.failures import to_exception
from kadril.transport.hub_protocol import Hub

__all__ = ["Waiting", "choose_waiting", "open_segment", "watch_peers"]

logger = logging.getLogger("kadril")

# How a rank waits before it sleeps. A look takes some ten nanoseconds, stepping aside half a
# microsecond, a sleep and its wake-up some microseconds. Stepping aside also helps where there are
# cores enough: the scheduler may have put two ranks on one.
NUM_SPINS = 1000
NUM_YIELDS = 200


class Waiting(NamedTuple):
    """Settings for the waiting of a channel; the arguments of `Segment.open_channel`."""

    patience: float
    warn_after: float
    num_spins: int
    num_yields: int


def open_segment(hub: Hub, config: Config) -> _native.Segment:
    """Rank 0 makes the segment, all others map it; where one rank fails, all raise."""
    made: _native.Segment | _native.Failure | None = None
    generation = secrets.randbits(63)
    if hub.rank == 0:
        made = create_segment(hub.size, config, generation)
    raise_failure_on_all(hub, made)
    generation = json.loads(hub.allgather(json.dumps(generation).encode())[0])
    descriptor = hub.broadcast_fd(made.descriptor if isinstance(made, _native.Segment) else None)
    if hub.rank == 0:
        os.close(descriptor)
    else:
        made = _native.Segment.attach(descriptor, generation)
    raise_failure_on_all(hub, made)
    assert isinstance(made, _native.Segment)  # noqa: S101 - it would have raised otherwise
    return made


def create_segment(
    num_ranks: int, config: Config, generation: int
) -> _native.Segment | _native.Failure:
    """Make the segment by memfd, or as a named file where that is asked for or memfd is missing."""

    def create(*, is_named: bool) -> _native.Segment | _native.Failure:
        return _native.Segment.create(num_ranks, config.shared_capacity, generation, is_named)

    if config.shared_backing == "named":
        return create(is_named=True)
    made = create(is_named=False)
    if isinstance(made, _native.Failure) and config.shared_backing == "auto":
        logger.warning("no memfd (%s); using a file in /dev/shm instead", made.detail)
        return create(is_named=True)
    return made


def raise_failure_on_all(hub: Hub, result: object) -> None:
    """Raise on all ranks where the result of one is a failure; on that rank with its own reason."""
    error = None
    if isinstance(result, _native.Failure):
        error = to_exception(result, range(hub.size))
    peers = Peers(range(hub.size), lambda blob, _: hub.allgather(blob), "local rank")
    raise_on_all(peers, "sharing memory", error, RendezvousError)


def watch_peers(hub: Hub, segment: _native.Segment) -> None:
    """Start watching the other ranks' processes."""
    own = os.pidfd_open(os.getpid())
    try:
        pidfds = hub.allgather_fds(own)
    finally:
        os.close(own)
    os.close(pidfds[hub.rank])
    pidfds[hub.rank] = -1
    raise_failure_on_all(hub, segment.watch(pidfds))


def choose_waiting(hub: Hub, config: Config) -> Waiting:
    """Spin only where every rank of the host has a core to itself."""
    cores = json.dumps(sorted(os.sched_getaffinity(0))).encode()
    all_cores = {core for blob in hub.allgather(cores) for core in json.loads(blob)}
    is_crowded = hub.size > len(all_cores)
    num_spins = 0 if is_crowded else NUM_SPINS
    if config.spin != "auto":
        num_spins = int(config.spin)
    if is_crowded and hub.rank == 0:
        logger.info("%d ranks share %d cores: waiting ranks do not spin", hub.size, len(all_cores))
    return Waiting(config.patience, config.stall_warning, num_spins, NUM_YIELDS)
