"""Bootstrap over a store of torch: that at MASTER_ADDR, or that of torch.distributed.

    kadril/<job>/<generation>/<round>/<rank>  =  proof | blob

A stranger who reaches the port can write anything, so a value counts only with an HMAC over
its key and its bytes, where the job has a secret (KADRIL_SECRET_FILE, or what the ranks of a
process group agree on: appointment.py). In any case values are read strictly.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
from typing import TYPE_CHECKING, Any

from kadril.errors import RendezvousError, name_ranks
from kadril.world.bootstrap.appointment import make_appointment
from kadril.world.bootstrap.base import key_prefix
from kadril.world.bootstrap.serving import connect_store, start_store
from kadril.world.deadline import Backoff, Deadline
from kadril.world.fields import MAX_OBJECT_BYTES
from kadril.world.inet import address_towards

if TYPE_CHECKING:
    import torch.distributed as dist

    from kadril.world.hub import Hub
    from kadril.world.layout import Layout

__all__ = ["StoreBootstrap"]

logger = logging.getLogger("kadril")

# One connection for the life of the process: a store that rank 0 serves must not go away while
# another rank still reads what was agreed, and the next init() finds the port taken by itself.
_stores: dict[tuple[str, int], dist.TCPStore] = {}


class StoreBootstrap:
    """All ranks of the world at one store.

    Attributes:
        rank: of this process.
        size: number of ranks.
    """

    kind = "store"
    listen_address = ""
    listener: socket.socket | None = None
    host_hub: Hub | None = None
    communicator: Any = None

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        *,
        place: str,
        job: str,
        generation: int,
        secret: bytes | None,
        is_server: bool,
        timeout: float,
        address: str = "",
    ) -> None:
        self.rank = rank
        self.size = size
        self.job = job
        self.generation = generation
        self.address = address
        self._store = store
        self._place = place
        self._prefix = key_prefix(self)
        self.secret = secret
        self._timeout = timeout
        self._is_server = is_server
        self._round = 0

    @classmethod
    def at_address(
        cls,
        host: str,
        port: int,
        rank: int,
        size: int,
        *,
        job: str,
        generation: int,
        secret: bytes | None,
        is_served: bool,
        timeout: float,
    ) -> StoreBootstrap:
        """Meet at an address, where rank 0 serves the store unless a launcher does.

        Raises:
            RendezvousError: the store cannot be served, or reached.
        """
        is_server = rank == 0 and not is_served
        if secret is None and (host, port) not in _stores:
            logger.info(
                "the store at %s is read without a proof, since the job has no secret; for one,"
                " give all ranks the same file: KADRIL_SECRET_FILE",
                f"{host}:{port}",
            )
        if (host, port) not in _stores:
            _stores[host, port] = (
                start_store(host, port, timeout)
                if is_server
                else connect_store(host, port, timeout)
            )
        return cls(
            _stores[host, port],
            rank,
            size,
            place=f"the store at {host}:{port}",
            job=job,
            generation=generation,
            secret=secret,
            is_server=is_server,
            timeout=timeout,
            address=address_towards(host, port),
        )

    @classmethod
    def of_process_group(
        cls,
        store: dist.Store,
        rank: int,
        size: int,
        *,
        generation: int,
        secret: bytes | None,
        timeout: float,
    ) -> StoreBootstrap:
        """Meet at the store of a process group; where the job has no secret, agree on one.

        Raises:
            RendezvousError: a rank did not come in time.
        """
        terms = make_appointment(store, rank, size, generation, timeout)
        return cls(
            store,
            rank,
            size,
            place="the store of torch.distributed",
            job=f"torch-{terms.job}",
            generation=terms.generation,
            secret=secret or terms.secret,
            is_server=rank == 0,
            timeout=timeout,
        )

    def exchange(self, blob: bytes) -> list[bytes]:
        """See `Bootstrap`."""
        if len(blob) > MAX_OBJECT_BYTES:
            raise ValueError(f"a blob may have {MAX_OBJECT_BYTES} bytes, got {len(blob)}")
        prefix = f"{self._prefix}/{self._round}"
        self._round += 1
        keys = [f"{prefix}/{rank}" for rank in range(self.size)]
        try:
            # Bytes that are not UTF-8 would not survive the store's text interface: hexadecimal
            # does.
            self._store.set(keys[self.rank], (self._proof(keys[self.rank], blob) + blob).hex())
            self._wait(keys)
            values = self._store.multi_get(keys)
        except RuntimeError as error:  # of torch: the connection broke
            raise RendezvousError(
                f"rank {self.rank}: {self._place} failed: {error}."
                " It is served by rank 0 or its launcher: see whether that is still there"
            ) from error
        return [self._check(rank, keys[rank], value) for rank, value in enumerate(values)]

    def store(self, layout: Layout) -> dist.Store:
        """The same store, below a prefix of its own."""
        from kadril.needs_torch import distributed as dist

        return dist.PrefixStore(f"{self._prefix}/transport", self._store)

    def finish(self) -> None:
        """The rank that serves stays until all others have read the last round."""
        keys = [f"{self._prefix}/finished/{rank}" for rank in range(self.size)]
        try:
            if self._is_server:
                self._wait(keys[1:])
            else:
                self._store.set(keys[self.rank], "1")
        except RuntimeError as error:
            raise RendezvousError(f"rank {self.rank}: {self._place} failed: {error}") from error

    def close(self) -> None:
        """Do nothing: the connection stays for the next generation."""

    def _wait(self, keys: list[str]) -> None:
        """Wait for keys, not by the store's own wait: that is deaf to Ctrl-C and names no rank."""
        deadline = Deadline(self._timeout)
        backoff = Backoff(0.001, 0.1)
        while not self._store.check(keys):
            if deadline.expired:
                missing = [rank_of(key) for key in keys if not self._store.check([key])]
                raise RendezvousError(
                    f"rank {self.rank}: {name_ranks(missing)} of {self.size} did not come to"
                    f" {self._place} within {self._timeout:g} s. See whether they were"
                    " started and reached kadril.init(), or raise KADRIL_CONNECT_TIMEOUT"
                )
            backoff.sleep(deadline)

    def _proof(self, key: str, blob: bytes) -> bytes:
        if self.secret is None:
            return b""
        message = b"kadril store\0" + hashlib.sha256(key.encode()).digest() + blob
        return hmac.new(self.secret, message, hashlib.sha256).digest()

    def _check(self, rank: int, key: str, value: bytes) -> bytes:
        """The blob of a value, if it is one of this job."""
        try:
            data = bytes.fromhex(value[: 2 * MAX_OBJECT_BYTES + 2 * 64].decode("ascii"))
        except ValueError as error:
            raise RendezvousError(
                f"the value of rank {rank} in the store is not kadril's"
            ) from error
        num_proof_bytes = 0 if self.secret is None else hashlib.sha256().digest_size
        given, blob = data[:num_proof_bytes], data[num_proof_bytes:]
        if not hmac.compare_digest(given, self._proof(key, blob)):
            raise RendezvousError(
                f"rank {self.rank}: the value of rank {rank} in {self._place} has a"
                " wrong proof: somebody else wrote it, or that rank read another secret."
                " Do all ranks have the same KADRIL_SECRET_FILE?"
            )
        return blob


def rank_of(key: str) -> int:
    """The rank in the last part of a key."""
    return int(key.rpartition("/")[2])
