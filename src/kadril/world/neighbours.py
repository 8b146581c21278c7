"""Neighbours: the ranks of one host find each other, and prove that it is one host.

    1. all ranks exchange their cards; ranks with equal cards may be neighbours
    2. the lowest rank of each such group makes a private directory with a secret; tells its path
    3. the others look: a directory of their own user, with a secret of the right print, proves one
       host; all ranks exchange what they saw
    4. those who saw it join the hub there; the directory is removed

Ranks that did not see it are on another host after all (a cloned virtual machine has the boot id of
its original), and do steps 2 and 3 again among themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
from collections.abc import Hashable

from kadril.errors import RendezvousError
from kadril.world.bootstrap import Bootstrap, agree
from kadril.world.card import Card
from kadril.world.fields import pack, unpack
from kadril.world.hub import Hub
from kadril.world.layout import Layout
from kadril.world.secret import PrivateDirectory, check_directory, read_secret

__all__ = ["meet_neighbours"]

logger = logging.getLogger("kadril")

OFFER = {"socket": str, "secret_file": str, "print": str}
NO_OFFER = {"socket": "", "secret_file": "", "print": ""}
SEEN, UNSEEN = b"seen", b"unseen"


def meet_neighbours(
    bootstrap: Bootstrap, cards: list[Card], *, timeout: float
) -> tuple[Layout, Hub]:
    """Find out which ranks share a host, and open a hub for those of this one; collective.

    Raises:
        RendezvousError: a rank could not take part; raised on all ranks.
    """
    keys: list[Hashable] = [card.host for card in cards]
    while True:
        layout = Layout.of(keys)
        neighbours = layout.host_of(bootstrap.rank)
        with contextlib.ExitStack() as stack:
            offer = _exchange_offers(bootstrap, neighbours, stack)
            secret, seen = _look(bootstrap, neighbours[0], offer)
            if all(seen):
                path = str(offer["socket"])
                hub = _join(bootstrap, neighbours, secret, path, timeout)
                return layout, hub
        # Whoever did not see its leader's directory is parted from those who did.
        logger.info("ranks with equal cards do not see the same files: they are on different hosts")
        keys = [(key, each) for key, each in zip(keys, seen, strict=True)]


def _exchange_offers(
    bootstrap: Bootstrap, neighbours: tuple[int, ...], stack: contextlib.ExitStack
) -> dict[str, object]:
    """Do step 2, and return the offer of this rank's leader; the stack removes the directory."""

    def offer() -> bytes:
        if len(neighbours) == 1 or bootstrap.rank != neighbours[0]:
            return pack(NO_OFFER)
        directory = stack.enter_context(PrivateDirectory())
        return pack(
            {
                "socket": directory.socket_path,
                "secret_file": directory.secret_file,
                "print": fingerprint(directory.secret),
            }
        )

    blobs = agree(bootstrap, "make a private directory", offer)
    leader = neighbours[0]
    return unpack(blobs[leader], OFFER, f"rank {leader}")


def _look(bootstrap: Bootstrap, leader: int, offer: dict[str, object]) -> tuple[bytes, list[bool]]:
    """Do step 3: return the secret, and for each rank whether it saw its leader's directory."""
    secret = b""

    def look() -> bytes:
        nonlocal secret
        if offer == NO_OFFER:
            return SEEN  # there are no neighbours to see
        secret = read_offer(str(offer["secret_file"]), str(offer["print"]), leader)
        return SEEN if secret else UNSEEN

    blobs = agree(bootstrap, "trust its neighbour's directory", look)
    return secret, [blob == SEEN for blob in blobs]


def read_offer(secret_file: str, expected: str, leader: int) -> bytes:
    """Return the secret; nothing where there is no such file here.

    Raises:
        RendezvousError: there is one and it is not to be trusted.
    """
    if not os.path.lexists(secret_file):
        return b""
    check_directory(os.path.dirname(secret_file))  # noqa: PTH120
    secret = read_secret(secret_file)
    if not hmac.compare_digest(fingerprint(secret), expected):
        raise RendezvousError(
            f"the secret in {secret_file} is not the one that rank {leader} wrote"
        )
    return secret


def fingerprint(secret: bytes) -> str:
    """Return a digest that tells two secrets apart, and reveals neither."""
    return hmac.new(secret, b"kadril neighbours", hashlib.sha256).hexdigest()


def _join(
    bootstrap: Bootstrap,
    neighbours: tuple[int, ...],
    secret: bytes,
    path: str,
    timeout: float,
) -> Hub:
    """Step 4, on every host at once."""
    opened: list[Hub] = []

    def join() -> bytes:
        opened.append(
            Hub.open(
                path,
                secret or bytes(32),  # without neighbours there is nobody to prove anything to
                neighbours.index(bootstrap.rank),
                len(neighbours),
                job=bootstrap.job,
                generation=bootstrap.generation,
                timeout=timeout,
            )
        )
        return b""

    try:
        agree(bootstrap, "join the hub of its host", join)
    except BaseException:
        for hub in opened:
            hub.close()
        raise
    return opened[0]
