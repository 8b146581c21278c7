"""The card of a rank: what another rank must know to tell whether both are on the same host.

Two ranks can share memory if one kernel runs both, they see the same files, processes and users,
and belong to the same user. Cards say so; a look at the other's private directory then proves it
(neighbours.py), since a cloned virtual machine has the boot id of its original.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import socket
from pathlib import Path

from kadril import __version__
from kadril.errors import RendezvousError
from kadril.world.fields import pack, unpack

__all__ = ["Card", "check_versions"]

logger = logging.getLogger("kadril")

# Those that keep ranks apart: files, processes, network, users. The ipc namespace does not matter
# to memory that is passed as a descriptor.
NAMESPACES = ("mnt", "pid", "net", "user")


@dataclasses.dataclass(frozen=True)
class Card:
    """Facts of one rank.

    Attributes:
        boot_id: drawn by the kernel at every boot.
        namespaces: which ones the process lives in, and which directory is its root.
        uid: effective user.
        label: `Config.host_label`; it can part ranks of one host, and never join ranks of two.
        hostname: for people; it decides nothing.
        pid: within its namespace.
        version: of kadril.
    """

    boot_id: str
    namespaces: str
    uid: int
    label: str
    hostname: str
    pid: int
    version: str

    @classmethod
    def mine(cls, label: str = "") -> Card:
        """The card of this process."""
        return cls(
            boot_id=read_boot_id(),
            namespaces=read_namespaces(),
            uid=os.geteuid(),
            label=label,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
        )

    @property
    def host(self) -> tuple[str, str, int, str]:
        """Key that is equal for ranks that may share memory."""
        return (self.boot_id, self.namespaces, self.uid, self.label)

    def pack(self) -> bytes:
        """Return the card as JSON."""
        return pack(dataclasses.asdict(self))

    @classmethod
    def unpack(cls, blob: bytes, rank: int) -> Card:
        """Read the card that `rank` sent.

        Raises:
            RendezvousError: it is not a card.
        """
        return cls(**unpack(blob, SCHEMA, f"rank {rank}"))  # type: ignore[arg-type]


SCHEMA = {
    "boot_id": str,
    "namespaces": str,
    "uid": int,
    "label": str,
    "hostname": str,
    "pid": int,
    "version": str,
}


def read_boot_id() -> str:
    """The kernel's boot id; where it cannot be read, something that equals nobody else's."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        logger.warning(
            "the boot id cannot be read (%s): this rank is taken as alone on its host", error
        )
        return secrets.token_hex(16)


def read_namespaces() -> str:
    """Identity of the namespaces and of the root directory."""
    root = os.stat("/")  # noqa: PTH116
    parts = [f"root={root.st_dev}:{root.st_ino}"]
    for name in NAMESPACES:
        try:
            parts.append(os.readlink(f"/proc/self/ns/{name}"))  # noqa: PTH115
        except OSError as error:
            logger.warning(
                "the %s namespace cannot be read (%s): taken as a namespace of its own", name, error
            )
            parts.append(f"{name}:{secrets.token_hex(8)}")
    return " ".join(parts)


def check_versions(cards: list[Card]) -> None:
    """Check that all ranks run the same kadril.

    Raises:
        RendezvousError: two of them do not; the message names both, the same on every rank.
    """
    for rank, card in enumerate(cards):
        if card.version != cards[0].version:
            raise RendezvousError(
                f"rank 0 on {cards[0].hostname} runs kadril {cards[0].version} and rank {rank} on"
                f" {card.hostname} kadril {card.version}. Install the same version for all ranks"
            )
