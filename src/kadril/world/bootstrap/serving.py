"""Torch's store, served by rank 0 or by a launcher.

The store has no notion of who may talk to it, so it is kept out of reach: bound to loopback where
all ranks are local, otherwise to the one address that was named, never to all interfaces. What is
read from it is untrusted (store.py).
"""

from __future__ import annotations

import datetime
import errno
import socket
from typing import TYPE_CHECKING

from kadril.errors import RendezvousError
from kadril.world.bootstrap.base import agree
from kadril.world.deadline import Backoff, Deadline
from kadril.world.fields import pack, unpack
from kadril.world.inet import bind, resolve

if TYPE_CHECKING:
    import torch.distributed as dist

    from kadril.world.bootstrap.base import Bootstrap

__all__ = ["connect_store", "serve_store", "start_store"]


def start_store(host: str, port: int, timeout: float) -> dist.TCPStore:
    """Serve a store at an address of this host; port 0 stands for any that is free.

    Raises:
        RendezvousError: it cannot be served there.
    """
    try:
        try:
            sock = bind(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            # Perhaps by this process: init_process_group() serves a store that can be shared.
            return make_server(host, port, timeout, None)
        return make_server(host, sock.getsockname()[1], timeout, sock.detach())
    except (OSError, RuntimeError) as error:
        raise RendezvousError(
            f"rank 0 cannot serve the store at {host}:{port}: {error}. MASTER_ADDR must be an"
            " address of rank 0's own host, and MASTER_PORT a free port of it"
        ) from error


def make_server(host: str, port: int, timeout: float, descriptor: int | None) -> dist.TCPStore:
    """A store that serves on a listening socket, or shares the server this process has there."""
    from kadril.needs_torch import distributed as dist

    return dist.TCPStore(
        "127.0.0.1" if host == "localhost" else host,
        port,
        is_master=True,
        timeout=datetime.timedelta(seconds=timeout),
        wait_for_workers=False,
        multi_tenant=True,  # so that a later init_process_group() of this process can share it
        master_listen_fd=descriptor,
    )


def connect_store(host: str, port: int, timeout: float) -> dist.TCPStore:
    """Connect to a store that is, or soon will be, served elsewhere.

    Raises:
        RendezvousError: nobody answers.
    """
    from kadril.needs_torch import distributed as dist

    wait_for_server(host, port, timeout)
    try:
        return dist.TCPStore(
            "127.0.0.1" if host == "localhost" else host,
            port,
            is_master=False,
            timeout=datetime.timedelta(seconds=timeout),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise RendezvousError(f"the store at {host}:{port} does not answer: {error}") from error


def wait_for_server(host: str, port: int, timeout: float) -> None:
    """Wait until somebody listens: torch would too, deaf to Ctrl-C and warning at every try."""
    deadline = Deadline(timeout)
    backoff = Backoff(0.005, 0.2)
    while True:
        try:
            family, kind, protocol, _, address = resolve(host, port)
            with socket.socket(family, kind, protocol) as probe:
                probe.settimeout(max(0.001, min(deadline.remaining, 5.0)))
                probe.connect(address)
                return
        except OSError as error:
            if deadline.expired:
                raise RendezvousError(
                    f"nobody serves the store at {host}:{port} within {timeout:g} s ({error})."
                    " Rank 0 does: see whether it was started, and whether MASTER_ADDR and"
                    " MASTER_PORT reach its host"
                ) from error
        backoff.sleep(deadline)


def serve_store(bootstrap: Bootstrap, host: str, prefix: str, timeout: float) -> dist.Store:
    """Rank 0 serves a store on a free port of `host`, all others connect; collective."""
    from kadril.needs_torch import distributed as dist

    served: list[dist.TCPStore] = []

    def serve() -> bytes:
        if bootstrap.rank != 0:
            return b""
        served.append(start_store(host, 0, timeout))
        return pack({"host": host, "port": served[0].port})

    blob = agree(bootstrap, "serve the store", serve)[0]
    if bootstrap.rank != 0:
        address = unpack(blob, {"host": str, "port": int}, "rank 0")
        served.append(connect_store(str(address["host"]), int(str(address["port"])), timeout))
    return dist.PrefixStore(prefix, served[0])
