"""The bootstrap protocol, and agreement over it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kadril.errors import RendezvousError

if TYPE_CHECKING:
    import torch.distributed as dist

    from kadril.world.hub import Hub
    from kadril.world.layout import Layout

__all__ = ["Bootstrap", "agree", "key_prefix"]

MAX_ERROR_CHARACTERS = 4000
DONE, FAILED = b"+", b"-"


class Bootstrap(Protocol):
    """All ranks of a world, able to exchange blobs.

    Attributes:
        rank: of this process.
        size: number of ranks.
        kind: "hub", "tcp", "store" or "mpi", by which a transport is chosen (`choice.py`).
        job: name of the job, the same on all ranks.
        generation: number of the world within the job, the same on all ranks.
        secret: of the job, which its ranks know and nobody else; None where there is none.
        address: of this rank's host, by which other hosts reach it; empty where it is not known.
        listen_address: where a transport of this rank is to listen for the others; empty where it
            chooses by itself.
        listener: on rank 0, a socket that listens for other hosts already; None elsewhere.
        host_hub: of all ranks, where they met at a unix-domain socket, which proves that one kernel
            runs them; None elsewhere.
        communicator: the one of mpi4py by which the ranks met; None where they met otherwise.
    """

    rank: int
    size: int
    kind: str
    job: str
    generation: int
    secret: bytes | None
    address: str
    listen_address: str
    listener: socket.socket | None
    host_hub: Hub | None
    communicator: Any

    def exchange(self, blob: bytes) -> list[bytes]:
        """Give a blob of at most 64 KiB; get those of all ranks, in rank order.

        Raises:
            RendezvousError: a rank did not come in time.
        """
        ...

    def store(self, layout: Layout) -> dist.Store:
        """A store of torch that all ranks share, with keys of this generation only; collective."""
        ...

    def finish(self) -> None:
        """The set-up is over: called once on every rank after the last exchange."""
        ...

    def close(self) -> None:
        """Leave; local, and may be called again."""
        ...


def key_prefix(bootstrap: Bootstrap) -> str:
    """Start of every key of one generation of one job."""
    return f"kadril/{bootstrap.job}/{bootstrap.generation}"


def agree(bootstrap: Bootstrap, what: str, action: Callable[[], bytes]) -> list[bytes]:
    """Call a function on every rank, and learn whether it succeeded on all of them.

    Args:
        bootstrap: over which to agree.
        what: names the action in the error of the ranks that could.
        action: gives a blob for the others.

    Returns:
        The blobs of all ranks.

    Raises:
        RendezvousError: it failed on another rank. Where it failed on this one, its own error is
            raised.
    """
    failure: Exception | None = None
    try:
        mine = DONE + action()
    except Exception as error:  # whatever it is, the others must not wait in vain
        failure = error
        text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]
        mine = FAILED + text.encode(errors="replace")
    try:
        blobs = bootstrap.exchange(mine)
    finally:
        if failure is not None:
            raise failure  # before any consequence that it has for the exchange
    for rank, blob in enumerate(blobs):
        if blob[:1] != DONE:
            reason = blob[1:].decode(errors="replace")[:MAX_ERROR_CHARACTERS]
            raise RendezvousError(f"rank {bootstrap.rank}: rank {rank} could not {what}: {reason}")
    return [blob[1:] for blob in blobs]
