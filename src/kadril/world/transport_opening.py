"""Opening of the transport that was chosen for a world.

Transports are imported here: each brings the engine below it, and only some are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

from kadril.config import Config
from kadril.world.bootstrap import Bootstrap, agree
from kadril.world.choice import Choice
from kadril.world.connector import Connector, open_connector
from kadril.world.hub import Hub
from kadril.world.inet import address_of
from kadril.world.layout import Layout

if TYPE_CHECKING:
    import torch.distributed as dist

    from kadril.transport.base import Transport
    from kadril.transport.network_transport import NetworkTransport

__all__ = ["open_transport"]


def open_transport(
    bootstrap: Bootstrap,
    choice: Choice,
    layout: Layout,
    hub: Hub,
    config: Config,
    hostnames: Sequence[str],
    stack: ExitStack,
) -> Transport:
    """Open the chosen transport on all ranks, or on none; collective.

    Args:
        bootstrap: by which the ranks have met.
        choice: the transport.
        layout: which ranks share a host.
        hub: of the ranks of this host.
        config: options of the world.
        hostnames: of the host of each rank, for errors; empty where all are on one.
        stack: gets what has to be closed after the transport.
    """
    # Collective by themselves, so not inside what the ranks agree on below.
    kinds = (choice.kind, choice.backend)
    store = bootstrap.store(layout) if "c10d" in kinds else None
    connector = open_connector(bootstrap, layout, hub, config) if "tcp" in kinds else None
    if connector is not None:
        stack.callback(connector.close)
    opening = Opening(bootstrap, layout, hub, store, connector, hostnames)

    def action() -> bytes:
        opening.open(choice, config)
        return b""

    try:
        agree(bootstrap, f"open the {choice.kind} transport", action)
    except BaseException:
        for transport in reversed(opening.opened):
            transport.close()
        raise
    return opening.opened[-1]


class Opening:
    """Opens transports of one rank.

    Attributes:
        opened: those that it has opened; the last one stands on the others.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        layout: Layout,
        hub: Hub,
        store: dist.Store | None,
        connector: Connector | None,
        hostnames: Sequence[str],
    ) -> None:
        self.bootstrap = bootstrap
        self.layout = layout
        self.hub = hub
        self.store = store
        self.connector = connector
        self.hostnames = hostnames
        self.opened: list[Transport] = []

    def open(self, choice: Choice, config: Config) -> Transport:
        """Open a transport between all ranks; collective."""
        makers = {
            "alone": self._open_alone,
            "shm": self._open_shm,
            "c10d": self._open_c10d,
            "mpi": self._open_mpi,
            "tcp": self._open_tcp,
            "tiered": self._open_tiered,
        }
        transport = makers[choice.kind](choice.backend, config)
        transport.hostnames = self.hostnames
        self.opened.append(transport)
        return transport

    def _open_alone(self, _: str, config: Config) -> Transport:
        from kadril.transport.alone import AloneTransport

        return AloneTransport(self.bootstrap.rank, config)

    def _open_shm(self, _: str, config: Config) -> Transport:
        from kadril.transport.shm import ShmTransport

        return ShmTransport.open(self.hub, config, self.layout.host_of(self.bootstrap.rank))

    def _open_mpi(self, _: str, config: Config) -> Transport:
        from kadril.transport.mpi import MpiTransport

        ranks = range(self.bootstrap.size)
        return MpiTransport.open(self.bootstrap.communicator, world_ranks=ranks, config=config)

    def _open_tcp(self, _: str, config: Config) -> Transport:
        from kadril.transport.tcp import TcpTransport

        dialer = cast("Connector", self.connector)
        return TcpTransport.open(dialer, world_ranks=range(self.bootstrap.size), config=config)

    def _open_c10d(self, backend: str, config: Config) -> Transport:
        store = cast("dist.Store", self.store)
        rank, size = self.bootstrap.rank, self.bootstrap.size
        hostname = gloo_host(self.bootstrap, self.layout, config)
        if backend == "gloo":
            from kadril.transport.c10d import C10dTransport

            return C10dTransport.open(
                store, rank, size, world_ranks=range(size), config=config, hostname=hostname
            )
        from kadril.transport.device import DeviceTransport

        return DeviceTransport(store, rank, size, range(size), config, hostname, backend)

    def _open_tiered(self, outer_kind: str, config: Config) -> Transport:
        from kadril.transport.tiers.tier_group import inner_config, outer_config
        from kadril.transport.tiers.tiered import TieredTransport

        is_alone = self.layout.local_size(self.bootstrap.rank) == 1
        inner = self.open(Choice("alone" if is_alone else "shm", "", ""), inner_config(config))
        outer = self.open(Choice(outer_kind, "gloo", ""), outer_config(config))
        return TieredTransport.open(
            inner, cast("NetworkTransport", outer), self.layout.hosts, config
        )


def gloo_host(bootstrap: Bootstrap, layout: Layout, config: Config) -> str:
    """The address that gloo listens on; empty where it is to choose itself."""
    if config.interface:
        return address_of(config.interface)
    if len(layout.hosts) == 1:
        return "127.0.0.1"
    return bootstrap.listen_address
