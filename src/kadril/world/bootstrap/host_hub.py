"""Bootstrap of ranks that one hub spans, on one host: `kadril run`, and a world of one."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from kadril.world.bootstrap.base import key_prefix
from kadril.world.bootstrap.serving import serve_store
from kadril.world.hub import Hub

if TYPE_CHECKING:
    import torch.distributed as dist

    from kadril.world.layout import Layout

__all__ = ["HubBootstrap"]


class HubBootstrap:
    """All ranks of the world in one hub.

    The unix-domain socket that they met at proves that they share a host.
    """

    kind = "hub"
    address = listen_address = "127.0.0.1"
    listener: socket.socket | None = None
    communicator: Any = None

    def __init__(
        self,
        hub: Hub,
        *,
        job: str,
        generation: int,
        timeout: float,
        secret: bytes | None = None,
    ) -> None:
        self.host_hub: Hub | None = hub
        self._hub = hub
        self.rank = hub.rank
        self.size = hub.size
        self.job = job
        self.generation = generation
        self.secret = secret
        self._timeout = timeout

    def exchange(self, blob: bytes) -> list[bytes]:
        """See `Bootstrap`."""
        return self._hub.allgather(blob)

    def store(self, layout: Layout) -> dist.Store:
        """Rank 0 serves on loopback: the unix-domain socket proves that one kernel runs all."""
        return serve_store(self, "127.0.0.1", key_prefix(self), self._timeout)

    def finish(self) -> None:
        """Do nothing: each exchange ends on all ranks together."""

    def close(self) -> None:
        """See `Bootstrap`."""
        self._hub.close()
