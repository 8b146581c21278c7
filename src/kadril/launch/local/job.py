"""One job on one host: its private directory with the secret and the rendezvous socket.

    <runtime directory>/kadril-<job id>/     0700
        secret                               0600, 32 random bytes
        rendezvous.sock                      bound and listening; rank 0 inherits the listener
        rank-<r>.record, rank-<r>.stacks     flight record of a rank (`transport/recording.py`)

A job on several hosts has such a directory on each, with the same secret in it; its ranks meet at
an address of rank 0's host, and there is no socket.

The names are only planned at first, so that the guardian can learn of the directory *before* it
exists: at no moment is there a directory that nobody would remove.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from kadril.launch.local.leftovers import remove_directory
from kadril.launch.options import LaunchError
from kadril.launch.supervision.summary import Outcome

__all__ = ["Job", "JobFiles", "runtime_directory"]

SECRET_BYTES = 32

# `sun_path` of a unix socket address holds 108 bytes on Linux, with the zero that ends it.
MAX_SOCKET_PATH = 107


class JobFiles(Protocol):
    """Files in the private directory of the job, by which ranks get and leave data."""

    def write(self, directory: Path) -> None:
        """Write what the ranks need; called before they start."""

    def read(self, directory: Path, outcome: Outcome) -> None:
        """Read what they left; called when all have ended, before the directory is removed."""


class Job:
    """Name, secret, directory and meeting place that the ranks of one job share.

    Attributes:
        id: hex text that names the job; not secret.
        size: number of ranks.
        secret: the bytes that its ranks know each other by.
        directory: the private directory.
        listener: the listening socket, between `open()` and `release_listener()`.
        rendezvous: where the ranks meet.
    """

    def __init__(
        self, size: int, *, job_id: str = "", secret: bytes = b"", meets_here: bool = True
    ) -> None:
        """Plan a job.

        Args:
            size: number of ranks.
            job_id: its name; a new one if it is empty.
            secret: the bytes that its ranks know each other by; new ones if there are none.
            meets_here: whether all ranks are on this host; otherwise `rendezvous` is set later.
        """
        self.id = job_id or os.urandom(8).hex()
        self.size = size
        self.secret = secret or os.urandom(SECRET_BYTES)
        self._meets_here = meets_here
        self.directory = runtime_directory(os.environ) / f"kadril-{self.id}"
        self.listener: socket.socket | None = None
        self.rendezvous = f"unix:{self.socket_path}" if meets_here else ""

    @property
    def socket_path(self) -> Path:
        """Return where the ranks meet."""
        return self.directory / "rendezvous.sock"

    @property
    def secret_path(self) -> Path:
        """Return where ranks read the secret; it is never in an argument or a variable."""
        return self.directory / "secret"

    def __enter__(self) -> Job:
        try:
            self._open()
        except OSError as error:
            self.close()
            raise LaunchError(
                f"cannot prepare the job directory {self.directory}: {error}; "
                f"set TMPDIR to a directory that takes files and sockets"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        # mkdir fails if the name exists, so nobody can have laid the directory out for us.
        self.directory.mkdir(mode=0o700)
        descriptor = os.open(self.secret_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, self.secret)
        finally:
            os.close(descriptor)
        if self._meets_here:
            self._listen()

    def _listen(self) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(os.fspath(self.socket_path))
        # Every rank may knock before rank 0 has started Python, and a few strangers too.
        self.listener.listen(2 * self.size + 128)

    def release_listener(self) -> None:
        """Close the launcher's copy, so that the socket is refused once rank 0 is gone."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def close(self) -> None:
        """Remove everything. May be called again."""
        self.release_listener()
        remove_directory(self.directory)

    def files(self) -> list[Path]:
        """Return the files in the directory that are not the job's own."""
        own = (self.secret_path, self.socket_path)
        return sorted(
            path
            for path in self.directory.iterdir()
            if path not in own and path.suffix not in (".record", ".stacks")
        )

    def record_path(self, rank: int) -> Path:
        """Return where a rank writes its flight record."""
        return self.directory / f"rank-{rank}.record"

    def identity(self, rank: int, local_rank: int, local_size: int) -> dict[str, str]:
        """Return the variables that tell a rank who it is and where it meets the others."""
        identity = {
            "KADRIL_JOB": self.id,
            "KADRIL_RANK": str(rank),
            "KADRIL_SIZE": str(self.size),
            "KADRIL_LOCAL_RANK": str(local_rank),
            "KADRIL_LOCAL_SIZE": str(local_size),
            "KADRIL_GENERATION": "0",
            "KADRIL_RENDEZVOUS": self.rendezvous,
            "KADRIL_SECRET_FILE": os.fspath(self.secret_path),
            "KADRIL_RECORD_FILE": os.fspath(self.record_path(rank)),
        }
        if rank == 0 and self.listener is not None:
            identity["KADRIL_LISTEN_FD"] = str(self.listener.fileno())
        return identity


def runtime_directory(environment: Mapping[str, str]) -> Path:
    """Return the first of XDG_RUNTIME_DIR, TMPDIR and /tmp that can hold the directory of a job.

    Raises:
        LaunchError: none can; the message says why for each.
    """
    refusals = []
    for source, text in (
        ("XDG_RUNTIME_DIR", environment.get("XDG_RUNTIME_DIR")),
        ("TMPDIR", environment.get("TMPDIR")),
        ("the default", "/tmp"),  # noqa: S108 - a random 0700 directory is made in it
    ):
        if text:
            refusal = why_not(Path(text), private=source == "XDG_RUNTIME_DIR")
            if not refusal:
                return Path(text)
            refusals.append(f"{text} ({source}): {refusal}")
    raise LaunchError(
        f"no directory for the rendezvous socket: {'; '.join(refusals)}. Set TMPDIR to a "
        f"short path that you can write to"
    )


def why_not(directory: Path, *, private: bool) -> str:
    """Return why this directory cannot hold that of a job, or an empty string."""
    longest = directory / "kadril-0123456789abcdef" / "rendezvous.sock"
    if not directory.is_absolute():
        return "not an absolute path"
    if len(os.fsencode(longest)) > MAX_SOCKET_PATH:
        return "too long for the address of a unix socket"
    if not directory.is_dir():
        return "no such directory"
    if private and directory.stat().st_uid != os.geteuid():
        return "belongs to another user"  # what `su` leaves behind
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        return "not writable"
    return ""
