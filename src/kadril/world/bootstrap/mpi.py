"""Bootstrap over MPI: mpirun, mpiexec, srun.

The lower-case calls of mpi4py would pickle, so everything goes as bytes. A collective of MPI waits
for ever for a rank that never calls it, so rank 0 hears the others one by one, and can name who is
missing.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Any

from kadril.errors import RendezvousError, name_ranks
from kadril.world.bootstrap.base import key_prefix
from kadril.world.bootstrap.serving import serve_store
from kadril.world.deadline import Backoff, Deadline
from kadril.world.fields import MAX_OBJECT_BYTES

if TYPE_CHECKING:
    import torch.distributed as dist

    from kadril.world.hub import Hub
    from kadril.world.layout import Layout

__all__ = ["MpiBootstrap", "import_mpi"]

TAG = (
    0x6B61  # any value that the user's own messages are unlikely to have; MPI allows at least 32767
)
HEADER = struct.Struct(
    "!QIi"
)  # generation, round, rank whose blob follows; -1 for the reason of a failure
FAILURE = -1


def import_mpi() -> Any:
    """The module `mpi4py.MPI`; importing it starts MPI.

    Raises:
        ImportError: mpi4py is not installed, or finds no MPI library.
    """
    try:
        from mpi4py import MPI
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ImportError(f"mpi4py is installed and finds no MPI ({reason})") from error
    return MPI


class MpiBootstrap:
    """All ranks of a communicator of mpi4py.

    Attributes:
        communicator: it stays the caller's.
        rank: of this process.
        size: number of ranks.
    """

    kind = "mpi"
    secret: bytes | None = None
    address = listen_address = ""
    listener: socket.socket | None = None
    host_hub: Hub | None = None

    def __init__(self, communicator: Any, *, job: str, generation: int, timeout: float) -> None:
        self.communicator = communicator
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()
        self.job = job
        self.generation = generation
        self._timeout = timeout
        self._round = 0

    def exchange(self, blob: bytes) -> list[bytes]:
        """See `Bootstrap`."""
        if len(blob) > MAX_OBJECT_BYTES:
            raise ValueError(f"a blob may have {MAX_OBJECT_BYTES} bytes, got {len(blob)}")
        self._round += 1
        deadline = Deadline(self._timeout)
        if self.rank == 0:
            return self._gather(blob, deadline)
        self._send(0, self.rank, blob)
        blobs: dict[int, bytes] = {}
        while len(blobs) < self.size:
            message = self._receive(0, deadline, slack=5.0)
            if message is None:
                raise RendezvousError(
                    f"rank {self.rank}: rank 0 did not answer within {self._timeout:g} s. See"
                    " whether it reached kadril.init(), or raise KADRIL_CONNECT_TIMEOUT"
                )
            rank, blob = message
            if rank == FAILURE:
                raise RendezvousError(f"rank {self.rank}: {blob.decode(errors='replace')}")
            blobs[rank] = blob
        return [blobs[rank] for rank in range(self.size)]

    def _gather(self, mine: bytes, deadline: Deadline) -> list[bytes]:
        blobs = {0: mine}
        while len(blobs) < self.size:
            message = self._receive(None, deadline)
            if message is None:
                missing = [rank for rank in range(self.size) if rank not in blobs]
                text = (
                    f"{name_ranks(missing)} of {self.size} did not come within {self._timeout:g}"
                    " s. See whether they reached kadril.init(), or raise KADRIL_CONNECT_TIMEOUT"
                )
                for rank in blobs.keys() - {0}:
                    self._send(rank, FAILURE, text.encode())
                raise RendezvousError(f"rank 0: {text}")
            blobs[message[0]] = message[1]
        for peer in range(1, self.size):
            for rank in range(self.size):
                self._send(peer, rank, blobs[rank])
        return [blobs[rank] for rank in range(self.size)]

    def _send(self, peer: int, rank: int, blob: bytes) -> None:
        header = HEADER.pack(self.generation, self._round, rank)
        self.communicator.Send(bytearray(header + blob), dest=peer, tag=TAG)

    def _receive(
        self, peer: int | None, deadline: Deadline, slack: float = 0.0
    ) -> tuple[int, bytes] | None:
        """The next message of this round, or None when time is up; older ones are left-overs."""
        mpi = import_mpi()
        source = mpi.ANY_SOURCE if peer is None else peer
        status = mpi.Status()
        backoff = Backoff(0.0001, 0.01)
        end = Deadline(deadline.remaining + slack)
        while True:
            if self.communicator.Iprobe(source=source, tag=TAG, status=status):
                data = bytearray(status.Get_count(mpi.BYTE))
                self.communicator.Recv(data, source=status.Get_source(), tag=TAG)
                generation, number, rank = HEADER.unpack_from(data)
                if (generation, number) == (self.generation, self._round):
                    return rank, bytes(data[HEADER.size :])
                continue
            if end.expired:
                return None
            backoff.sleep(end)

    def store(self, layout: Layout) -> dist.Store:
        """Rank 0 serves: on loopback where all ranks are local, else on its host's own address."""
        if len(layout.hosts) == 1:
            host = "127.0.0.1"
        else:
            host = os.environ.get("MASTER_ADDR") or routable_address()
        return serve_store(self, host, key_prefix(self), self._timeout)

    def finish(self) -> None:
        """Do nothing: MPI keeps what was sent."""

    def close(self) -> None:
        """Do nothing: the communicator is the caller's."""


def routable_address() -> str:
    """An address of this host that other hosts can reach; nothing is sent.

    Raises:
        RendezvousError: the host's name leads to loopback only.
    """
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "127.0.0.1"
    if address.startswith("127."):
        raise RendezvousError(
            f"the name {socket.gethostname()} leads to {address}, which other hosts cannot reach."
            " Set MASTER_ADDR to the address of rank 0's host"
        )
    return address
