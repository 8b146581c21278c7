"""Open the bootstrap that an identity asks for."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
from collections.abc import Callable

from kadril.config import Config
from kadril.errors import ConfigError, RendezvousError
from kadril.world import unix
from kadril.world.bootstrap.base import Bootstrap
from kadril.world.bootstrap.host_hub import HubBootstrap
from kadril.world.bootstrap.mpi import MpiBootstrap, import_mpi
from kadril.world.bootstrap.store import StoreBootstrap
from kadril.world.bootstrap.tcp import TcpBootstrap
from kadril.world.handshake import SECRET_BYTES
from kadril.world.hub import Hub
from kadril.world.identity import TORCH, Identity
from kadril.world.process_group import default_store
from kadril.world.secret import check_directory, read_secret

__all__ = ["open_bootstrap"]

logger = logging.getLogger("kadril")

# The launcher's listening socket stays with this process, so that every generation finds it.
_listeners: dict[int, socket.socket] = {}


def open_bootstrap(
    identity: Identity,
    generation: int,
    config: Config,
    is_cancelled: Callable[[], bool] | None = None,
) -> Bootstrap:
    """Meet all ranks of the world, in the way that the identity names.

    Args:
        identity: who this process is.
        generation: number of the world within the job.
        config: options of the world.
        is_cancelled: see `Hub.open`; asked where all ranks are on one host.

    Raises:
        RendezvousError: they could not be met.
        ConfigError: the identity names no way.
    """
    if identity.size == 1:
        return alone(identity, generation, config)
    kind, _, place = identity.rendezvous.partition(":")
    if kind == "unix":
        return by_hub(identity, place, generation, config, is_cancelled)
    if kind == "tcp":
        return by_address(identity, place, generation, config)
    if kind == "mpi":
        return by_mpi(identity, generation, config)
    if kind == TORCH:
        return by_process_group(identity, generation, config)
    raise ConfigError(
        f"the rendezvous must be unix:<path>, tcp:<host>:<port> or {TORCH}, got"
        f" {identity.rendezvous!r}"
    )


def alone(identity: Identity, generation: int, config: Config) -> Bootstrap:
    """A world of one meets nobody."""
    secret = bytes(SECRET_BYTES)  # there is nobody to prove anything to
    hub = Hub.open(
        "", secret, 0, 1, job=identity.job, generation=generation, timeout=config.connect_timeout
    )
    return HubBootstrap(
        hub, job=identity.job, generation=generation, timeout=config.connect_timeout
    )


def by_hub(
    identity: Identity,
    path: str,
    generation: int,
    config: Config,
    is_cancelled: Callable[[], bool] | None = None,
) -> Bootstrap:
    """Meet at a unix-domain socket; all ranks are on one host."""
    if not identity.secret_file:
        raise ConfigError(
            f"a rendezvous at unix:{path} needs the job's secret; set KADRIL_SECRET_FILE"
        )
    check_directory(os.path.dirname(path))  # noqa: PTH120
    listener = None
    if identity.listen_fd is not None:
        if identity.listen_fd not in _listeners:
            _listeners[identity.listen_fd] = unix.adopt(identity.listen_fd, path)
        listener = _listeners[identity.listen_fd]
    assert identity.size is not None  # noqa: S101 - only MPI leaves it open
    secret = read_secret(identity.secret_file)
    hub = Hub.open(
        path,
        secret,
        identity.rank,
        identity.size,
        job=identity.job,
        generation=generation,
        listen_socket=listener,
        timeout=config.connect_timeout,
        is_cancelled=is_cancelled,
    )
    return HubBootstrap(
        hub,
        job=identity.job,
        generation=generation,
        timeout=config.connect_timeout,
        secret=secret,
    )


def by_address(identity: Identity, place: str, generation: int, config: Config) -> Bootstrap:
    """Meet at a port of rank 0's host: a hub if kadril started the ranks, else torch's store.

    Other launchers and programs that name an address expect torch's store there, and some serve it.
    """
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"the rendezvous must be tcp:<host>:<port>, got tcp:{place}")
    assert identity.size is not None  # noqa: S101 - only MPI leaves it open
    if identity.secret_file and identity.is_own:
        return TcpBootstrap.open(
            host.strip("[]"),
            int(port),
            identity.rank,
            identity.size,
            job=identity.job,
            generation=generation,
            secret=read_secret(identity.secret_file),
            config=config,
        )
    return StoreBootstrap.at_address(
        host.strip("[]"),
        int(port),
        identity.rank,
        identity.size,
        job=identity.job,
        generation=generation,
        secret=read_secret(identity.secret_file) if identity.secret_file else None,
        is_served=identity.is_served,
        timeout=config.connect_timeout,
    )


def by_process_group(identity: Identity, generation: int, config: Config) -> Bootstrap:
    """Meet at the store of the default process group of torch.distributed."""
    assert identity.size is not None  # noqa: S101 - only MPI leaves it open
    return StoreBootstrap.of_process_group(
        default_store(),
        identity.rank,
        identity.size,
        generation=generation,
        secret=read_secret(identity.secret_file) if identity.secret_file else None,
        timeout=config.connect_timeout,
    )


def by_mpi(identity: Identity, generation: int, config: Config) -> Bootstrap:
    """Meet over MPI or, where mpi4py is missing, at the address that the launcher gave too."""
    try:
        mpi = import_mpi()
    except ImportError as error:
        if identity.fallback:
            logger.info(
                "the ranks of %s meet at %s, since %s", identity.source, identity.fallback, error
            )
            fallback = dataclasses.replace(identity, rendezvous=identity.fallback)
            return open_bootstrap(fallback, generation, config)
        raise RendezvousError(
            f"{identity.source} started this process as rank {identity.rank}, and it cannot find"
            f" the others: {error}. Try: pip install kadril[mpi], and an MPI"
        ) from error
    world = mpi.COMM_WORLD
    if identity.size not in (None, world.Get_size()):
        raise RendezvousError(
            f"{identity.source} started this process as rank {identity.rank} of {identity.size},"
            f" and mpi4py sees rank {world.Get_rank()} of {world.Get_size()}: it was built for, or"
            f" loads, another MPI ({mpi.get_vendor()[0]}). Use the mpirun of that MPI, or"
            " reinstall mpi4py for this one"
        )
    return MpiBootstrap(
        world,
        job=identity.job,
        generation=generation,
        timeout=config.connect_timeout,
    )
