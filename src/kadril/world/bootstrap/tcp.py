"""Bootstrap over a hub at a port of rank 0's host: several hosts, with the job's secret.

Every rank proves that it knows the secret and checks that rank 0 does (handshake.py), so strangers
who reach the port are refused and harm nobody. What is exchanged then is read strictly, and is
neither encrypted nor secret.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from kadril.config import Config
from kadril.transport.forked_sockets import close_in_children
from kadril.transport.keepalive import set_liveness
from kadril.world.bootstrap.base import key_prefix
from kadril.world.bootstrap.serving import serve_store
from kadril.world.gathering import release_held
from kadril.world.hub import Hub
from kadril.world.inet import address_of
from kadril.world.place import TcpPlace

if TYPE_CHECKING:
    import torch.distributed as dist

    from kadril.world.layout import Layout

__all__ = ["TcpBootstrap"]


class TcpBootstrap:
    """All ranks of the world in one hub, at a port of rank 0's host.

    Attributes:
        secret: of the job.
        address: of this rank's host, by which rank 0 sees it.
        listener: rank 0's socket, which serves as the port of its host from then on.
    """

    kind = "tcp"
    host_hub: Hub | None = None
    communicator: Any = None

    def __init__(
        self,
        hub: Hub,
        *,
        job: str,
        generation: int,
        secret: bytes,
        address: str,
        listener: socket.socket | None,
        timeout: float,
    ) -> None:
        self.rank = hub.rank
        self.size = hub.size
        self.job = job
        self.generation = generation
        self.secret: bytes | None = secret
        self.address = self.listen_address = address
        self.listener = listener
        self._hub = hub
        self._timeout = timeout

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        rank: int,
        size: int,
        *,
        job: str,
        generation: int,
        secret: bytes,
        config: Config,
    ) -> TcpBootstrap:
        """Meet at a port, where rank 0 listens.

        Raises:
            RendezvousError: a rank did not come, or does not prove to be of the job.
        """
        source = address_of(config.interface) if config.interface else ""
        place = TcpPlace(host, port, source)
        listener = close_in_children(place.listen()) if rank == 0 else None
        try:
            hub = Hub.open(
                place,
                secret,
                rank,
                size,
                job=job,
                generation=generation,
                listen_socket=listener,
                timeout=config.connect_timeout,
            )
        except BaseException:
            close_listener(listener)
            raise
        for sock in hub.sockets:
            set_liveness(close_in_children(sock), config.link_timeout)
        seen = listener if listener is not None else hub.sockets[0]
        return cls(
            hub,
            job=job,
            generation=generation,
            secret=secret,
            address=str(seen.getsockname()[0]),
            listener=listener,
            timeout=config.connect_timeout,
        )

    def exchange(self, blob: bytes) -> list[bytes]:
        """See `Bootstrap`."""
        return self._hub.allgather(blob)

    def store(self, layout: Layout) -> dist.Store:
        """Rank 0 serves on the address that it listens on, at one port more."""
        return serve_store(self, self.address, key_prefix(self), self._timeout)

    def finish(self) -> None:
        """Do nothing: each exchange ends on all ranks together."""

    def close(self) -> None:
        """See `Bootstrap`."""
        self._hub.close()
        close_listener(self.listener)


def close_listener(listener: socket.socket | None) -> None:
    """Stop listening; ranks that came for a later generation connect again."""
    if listener is not None:
        release_held(listener)
        listener.close()
