"""Agreement of the ranks of a torch.distributed process group on a job, over its store.

The store may hold what others left there: an earlier world of the same group, a job that was killed
and whose file was kept, a rank that was replaced. So nothing that it holds is taken for new:

    rank r                                         rank 0
      hello/<r> = a fresh nonce     ------------>    waits for the nonces of all
      waits for terms with its nonce <-----------    terms = job, secret, generation, all nonces
      seen/<job>/<r> = 1            ------------>    waits for all; a new nonce makes new terms
      waits for start/<job>         <------------    start/<job> = 1; the terms are wiped

The name of the job is random, so that all keys which follow are this world's alone. The generation
is that of rank 0: ranks that had other worlds before have counted differently.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING

from kadril.errors import RendezvousError, name_ranks
from kadril.world.deadline import Backoff, Deadline
from kadril.world.fields import pack, unpack
from kadril.world.handshake import SECRET_BYTES

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["Terms", "make_appointment"]

PREFIX = "kadril/appointment"
TERMS = f"{PREFIX}/terms"
SCHEMA = {"job": str, "secret": str, "generation": int, "nonces": list}
WIPED = b"wiped"


@dataclasses.dataclass(frozen=True)
class Terms:
    """Terms that the ranks agree on.

    Attributes:
        job: random name that no other world has.
        secret: random, for the proofs of what is read from the store.
        generation: number of this world.
    """

    job: str
    secret: bytes
    generation: int

    @property
    def start_key(self) -> str:
        """Key that rank 0 sets when all ranks have seen these terms."""
        return f"{PREFIX}/start/{self.job}"

    def seen_key(self, rank: int) -> str:
        """Return the key that a rank sets when it has seen these terms."""
        return f"{PREFIX}/seen/{self.job}/{rank}"


def make_appointment(
    store: dist.Store, rank: int, size: int, generation: int, timeout: float
) -> Terms:
    """Agree with all ranks of a store; collective.

    Raises:
        RendezvousError: a rank did not come in time, or the store failed.
    """
    try:
        if rank == 0:
            return lead(store, size, generation, timeout)
        return follow(store, rank, size, timeout)
    except RendezvousError:
        raise
    except RuntimeError as error:  # of torch: the connection broke
        raise RendezvousError(
            f"rank {rank}: the store of torch.distributed failed: {error}. Rank 0 serves it most"
            " often: see whether it is still there"
        ) from error


def hello_keys(size: int) -> list[str]:
    """Return the keys under which the ranks beyond 0 leave their nonces."""
    return [f"{PREFIX}/hello/{rank}" for rank in range(1, size)]


def lead(store: dist.Store, size: int, generation: int, timeout: float) -> Terms:
    """Name the terms, on rank 0, until all ranks have seen the same ones."""
    deadline, backoff = Deadline(timeout), Backoff(0.001, 0.1)
    nonces: list[str] = []
    terms: Terms | None = None
    while True:
        found = read_nonces(store, size)
        if found and (terms is None or found != nonces):
            nonces = found
            terms = Terms(secrets.token_hex(8), secrets.token_bytes(SECRET_BYTES), generation)
            fields = {**dataclasses.asdict(terms), "secret": terms.secret.hex(), "nonces": nonces}
            store.set(TERMS, pack(fields).decode())
        if terms is not None and store.check([terms.seen_key(rank) for rank in range(1, size)]):
            store.set(terms.start_key, "1")
            store.set(TERMS, WIPED.decode())
            return terms
        if deadline.expired:
            keys = hello_keys(size)
            if terms is not None:
                keys = [terms.seen_key(rank) for rank in range(1, size)]
            raise late(store, 0, size, dict(enumerate(keys, 1)), timeout)
        backoff.sleep(deadline)


def follow(store: dist.Store, rank: int, size: int, timeout: float) -> Terms:
    """Wait, on a rank beyond 0, for terms that answer its own nonce, and for the start."""
    deadline, backoff = Deadline(timeout), Backoff(0.001, 0.1)
    nonce = secrets.token_hex(8)
    store.set(hello_keys(size)[rank - 1], nonce)
    terms: Terms | None = None
    while True:
        read = read_terms(store, rank, nonce)
        if read is not None and read != terms:
            terms = read
            store.set(terms.seen_key(rank), "1")
        if terms is not None and store.check([terms.start_key]):
            return terms
        if deadline.expired:
            keys = dict(enumerate(hello_keys(size), 1))
            raise late(store, rank, size, keys, timeout)
        backoff.sleep(deadline)


def read_nonces(store: dist.Store, size: int) -> list[str]:
    """The nonces of all ranks beyond 0; nothing while one is missing."""
    keys = hello_keys(size)
    if not store.check(keys):
        return []
    return [value[:64].decode(errors="replace") for value in store.multi_get(keys)]


def read_terms(store: dist.Store, rank: int, nonce: str) -> Terms | None:
    """The terms in the store, if they answer this rank's nonce; older ones are not for it."""
    if not store.check([TERMS]):
        return None
    blob = store.get(TERMS)
    if blob == WIPED:
        return None
    fields = unpack(blob, SCHEMA, "rank 0")
    nonces = fields["nonces"]
    if not isinstance(nonces, list) or len(nonces) < rank or nonces[rank - 1] != nonce:
        return None
    try:
        secret = bytes.fromhex(str(fields["secret"]))
    except ValueError:
        raise RendezvousError(
            f"rank {rank}: the terms of rank 0 in the store are no terms"
        ) from None
    return Terms(str(fields["job"]), secret, int(str(fields["generation"])))


def late(
    store: dist.Store, rank: int, size: int, keys: dict[int, str], timeout: float
) -> RendezvousError:
    """Name the ranks that did not come."""
    missing = [each for each, key in keys.items() if not store.check([key])] or [0]
    return RendezvousError(
        f"rank {rank}: {name_ranks(missing)} of {size} did not come to the store of"
        f" torch.distributed within {timeout:g} s. See whether they reached kadril.init(), or raise"
        " KADRIL_CONNECT_TIMEOUT"
    )
