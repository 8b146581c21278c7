"""A world: all ranks of a job, having met, with a transport between them.

who am I            identity.py     from the arguments of init(), or from a launcher's variables
meet the others     bootstrap/      over a hub, torch's store, or MPI
who shares a host   neighbours.py   cards, then a proof
which transport     choice.py       the one that was asked for, or the best that can work
open it             transport_opening.py
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from kadril.config import Config
from kadril.errors import ClosedError, ForkedError
from kadril.world.bootstrap import Bootstrap, open_bootstrap
from kadril.world.bootstrap.host_hub import HubBootstrap
from kadril.world.bootstrap.mpi import MpiBootstrap
from kadril.world.bootstrap.tcp import TcpBootstrap
from kadril.world.card import Card, check_versions
from kadril.world.choice import choose_transport
from kadril.world.hub import Hub
from kadril.world.identity import Identity
from kadril.world.layout import Layout
from kadril.world.neighbours import meet_neighbours
from kadril.world.transport_opening import open_transport

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from kadril.transport.base import Transport
    from kadril.transport.buffer import Memory

__all__ = ["World", "open_local", "open_mpi", "open_remote", "open_world"]

logger = logging.getLogger("kadril")


class World:
    """All ranks of a job; a context manager that closes itself.

    Attributes:
        rank: of this process.
        size: number of ranks.
        layout: which ranks share a host.
        transport: between all ranks.
        hub: of the ranks of this host, for setting up more.
        config: the options it was opened with.
        source: who said which rank this is: "kadril run", "torchrun", ...
        job: name of the job.
        generation: number of this world within the job.
        reason: why this transport was chosen.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        layout: Layout,
        hub: Hub,
        transport: Transport,
        *,
        config: Config,
        source: str,
        reason: str,
        resources: contextlib.ExitStack,
    ) -> None:
        self.rank = bootstrap.rank
        self.size = bootstrap.size
        self.layout = layout
        self.hub = hub
        self.transport = transport
        self.config = config
        self.source = source
        self.job = bootstrap.job
        self.generation = bootstrap.generation
        self.reason = reason
        self._bootstrap = bootstrap
        self._resources = resources  # closes the transport first, the bootstrap last
        self._pid = os.getpid()
        self._is_closed = False
        self._said_why_not_shared = False
        self._closers: list[Callable[[], None]] = []

    @property
    def local_rank(self) -> int:
        """Position of this rank on its host."""
        return self.layout.local_rank(self.rank)

    @property
    def local_size(self) -> int:
        """Number of ranks on this host."""
        return self.layout.local_size(self.rank)

    @property
    def cross_rank(self) -> int:
        """Position of this host among the hosts that have this local rank."""
        return self.layout.cross_rank(self.rank)

    @property
    def cross_size(self) -> int:
        """Number of hosts that have this local rank."""
        return self.layout.cross_size(self.rank)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and writes for all."""
        return self.rank == 0

    @property
    def uses_mpi(self) -> bool:
        """Whether MPI carries the data, as programs written for Horovod ask."""
        return self.transport.moves_by_mpi

    @property
    def communicator(self) -> Any | None:
        """The communicator of mpi4py by which the ranks met; None where they met otherwise."""
        return self._bootstrap.communicator

    @property
    def is_closed(self) -> bool:
        """Whether `close()` was called."""
        return self._is_closed

    @overload
    def shared_empty(
        self, shape: int | Sequence[int], dtype: torch.dtype | None = None
    ) -> torch.Tensor: ...

    @overload
    def shared_empty(
        self, shape: int | Sequence[int], dtype: np.dtype[Any] | type[Any] | str
    ) -> npt.NDArray[Any]: ...

    def shared_empty(self, shape: int | Sequence[int], dtype: Any = None) -> Any:
        """Return an array in memory that the ranks of this host share, if the transport has any.

        Collectives on it are zero-copy. The memory is given back when the array dies. Elsewhere it
        is a plain array, and works the same.

        Args:
            shape: of the array.
            dtype: of its elements. One of torch gives a tensor, one of numpy a numpy array; None
                stands for torch.float32.

        Raises:
            NoRoomError: there is not enough memory to share.
            ClosedError: the world was closed.
            ForkedError: called in a child made by fork.
            ModuleNotFoundError: a tensor, without torch.
        """
        self.check_usable("shared_empty")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if not is_of_torch(dtype):
            import numpy as np

            dtype = np.dtype(dtype)
            memory = self._shared_bytes(math.prod(shape) * dtype.itemsize)
            return np.empty(shape, dtype) if memory is None else memory.view(dtype).reshape(shape)
        from kadril.needs_torch import torch
        from kadril.transport.tensor import memory_tensor

        dtype = torch.float32 if dtype is None else dtype
        memory = self._shared_bytes(math.prod(shape) * dtype.itemsize)
        if memory is None:
            return torch.empty(shape, dtype=dtype)
        return memory_tensor(memory, dtype).reshape(shape)

    def _shared_bytes(self, num_bytes: int) -> Memory | None:
        """Return memory that the ranks of this host share; None where they share none."""
        memory = self.transport.host_memory
        if memory is not None:
            return memory.empty(num_bytes)
        if not self._said_why_not_shared:
            self._said_why_not_shared = True
            logger.info(
                "shared_empty gives plain memory: transport %s shares none", self.transport.kind
            )
        return None

    def check_usable(self, operation: str) -> None:
        """Raise `ForkedError` in a child made by fork, `ClosedError` after `close()`."""
        if os.getpid() != self._pid:
            raise ForkedError(
                f"{operation} in process {os.getpid()}, a child of rank {self.rank} made by fork."
                " A child is not a rank: call kadril in the parent, or start the child with"
                " multiprocessing's 'spawn'"
            )
        if self._is_closed:
            raise ClosedError(
                f"{operation} on a world that was closed; open one with kadril.init()"
            )

    def on_close(self, closer: Callable[[], None]) -> None:
        """Have something that stands on this world closed before it, the last one first."""
        self._closers.append(closer)

    def close_dependents(self) -> None:
        """Close what stands on this world, and leave it open itself."""
        with contextlib.ExitStack() as stack:
            for closer in self._closers:
                stack.callback(closer)
            self._closers = []

    def close(self) -> None:
        """Leave the world; local, may be called again. A rank that still waits gets `PeerLost`."""
        # A child made by fork has copies of the parent's descriptors: closing the world is not its
        # business.
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        with contextlib.ExitStack() as stack:
            stack.callback(self._resources.close)
            stack.callback(self.close_dependents)

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return (
            f"World(rank={self.rank}, size={self.size}, local_rank={self.local_rank},"
            f" local_size={self.local_size}, transport={self.transport.kind!r},"
            f" source={self.source!r}{state})"
        )


def open_world(
    identity: Identity,
    config: Config,
    generation: int,
    is_cancelled: Callable[[], bool] | None = None,
) -> World:
    """Meet the ranks that an identity speaks of, and open a transport between them; collective.

    Args:
        identity: who this process is.
        config: the options.
        generation: number of this world within the job.
        is_cancelled: see `Hub.open`.

    Raises:
        RendezvousError: a rank did not come, or does not fit; all ranks that came get it.
        ConfigError: an option cannot be satisfied here.
    """
    bootstrap = open_bootstrap(identity, generation, config, is_cancelled)
    return build_world(bootstrap, config, identity.source)


def open_local(
    rank: int,
    size: int,
    path: str,
    secret: bytes,
    *,
    job: str,
    generation: int = 0,
    config: Config | None = None,
    listen_socket: socket.socket | None = None,
) -> World:
    """Open a world of ranks of one host that were given a rendezvous explicitly; collective.

    It does not become the one of `kadril.current()`, and several may be open in one process.

    Args:
        rank: of this process.
        size: number of ranks.
        path: of the unix-domain socket where they meet.
        secret: 32 bytes that all ranks know.
        job: name of the job.
        generation: number of this world within the job.
        config: options; those of the environment where None.
        listen_socket: rank 0 only: the socket that listens at `path`; where None rank 0 binds it.

    Raises:
        RendezvousError, ConfigError: as `open_world`.
    """
    config = Config.from_environment() if config is None else config
    hub = Hub.open(
        path,
        secret,
        rank,
        size,
        job=job,
        generation=generation,
        listen_socket=listen_socket,
        timeout=config.connect_timeout,
    )
    bootstrap = HubBootstrap(
        hub, job=job, generation=generation, timeout=config.connect_timeout, secret=secret
    )
    return build_world(bootstrap, config, "arguments of open_local()")


def open_remote(
    rank: int,
    size: int,
    host: str,
    port: int,
    secret: bytes,
    *,
    job: str,
    generation: int = 0,
    config: Config | None = None,
) -> World:
    """Open a world of ranks that meet at a port of rank 0's host; collective. See `open_local`.

    Raises:
        RendezvousError, ConfigError: as `open_world`.
    """
    config = Config.from_environment() if config is None else config
    bootstrap = TcpBootstrap.open(
        host, port, rank, size, job=job, generation=generation, secret=secret, config=config
    )
    return build_world(bootstrap, config, "arguments of open_remote()")


def open_mpi(
    communicator: Any, *, job: str = "mpi", generation: int = 0, config: Config | None = None
) -> World:
    """Open a world on a communicator of mpi4py; collective over it. See `open_local`.

    Raises:
        RendezvousError, ConfigError: as `open_world`.
    """
    config = Config.from_environment() if config is None else config
    bootstrap = MpiBootstrap(
        communicator,
        job=job,
        generation=generation,
        timeout=config.connect_timeout,
    )
    return build_world(bootstrap, config, "arguments of open_mpi()")


def build_world(bootstrap: Bootstrap, config: Config, source: str) -> World:
    """Make a world of ranks that can exchange blobs; collective. If it fails, all is closed."""
    with contextlib.ExitStack() as stack:
        stack.callback(bootstrap.close)
        blobs = bootstrap.exchange(Card.mine(config.host_label).pack())
        cards = [Card.unpack(blob, rank) for rank, blob in enumerate(blobs)]
        check_versions(cards)
        layout, hub = find_layout(bootstrap, cards, config)
        stack.callback(hub.close)
        choice = choose_transport(config, layout, bootstrap.kind)
        hostnames = [card.hostname for card in cards] if len(layout.hosts) > 1 else []
        transport = open_transport(bootstrap, choice, layout, hub, config, hostnames, stack)
        stack.callback(transport.close)
        bootstrap.finish()
        resources = stack.pop_all()
    logger.info(
        "rank %d of %d by %s; transport %s, since %s",
        bootstrap.rank,
        bootstrap.size,
        source,
        choice.kind,
        choice.reason,
    )
    return World(
        bootstrap,
        layout,
        hub,
        transport,
        config=config,
        source=source,
        reason=choice.reason,
        resources=resources,
    )


def find_layout(bootstrap: Bootstrap, cards: list[Card], config: Config) -> tuple[Layout, Hub]:
    """Find the ranks of each host, and a hub of those on this one."""
    layout = Layout.of([card.host for card in cards])
    if bootstrap.host_hub is not None and len(layout.hosts) == 1:
        return layout, bootstrap.host_hub
    return meet_neighbours(bootstrap, cards, timeout=config.connect_timeout)


def is_of_torch(dtype: object) -> bool:
    """Whether a dtype is one of torch, for which None stands too."""
    torch = sys.modules.get("torch")
    return dtype is None or (torch is not None and isinstance(dtype, torch.dtype))
