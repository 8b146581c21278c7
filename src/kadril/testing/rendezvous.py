"""Meeting place of the ranks of a world: a private directory with a socket in it."""

from __future__ import annotations

import functools
import os
import re
import secrets
import shutil
import socket
import tempfile
from pathlib import Path

from kadril.testing.process import state_of

__all__ = ["Rendezvous", "make_directory", "remove_directory", "sweep_directories"]

# A unix socket's path is cut off at 107 bytes; leave room for the name of the socket itself.
LONGEST_DIRECTORY = 80

# Short, and there on every Linux. What is made in them is made by mkdtemp, for this user alone.
FALLBACK = Path("/tmp")  # noqa: S108
MEMORY = Path("/dev/shm")  # noqa: S108


def make_directory(purpose: str, *, in_memory: bool = False) -> Path:
    """Make a directory that only this user can enter; its name says which process made it.

    Args:
        purpose: a word for its name.
        in_memory: make it in /dev/shm where there is one.
    """
    sweep_directories()
    prefix = f"kadril-{purpose}-{os.getpid()}-"
    if in_memory and MEMORY.is_dir():
        return Path(tempfile.mkdtemp(prefix=prefix, dir=MEMORY))
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    if len(os.fsencode(directory)) > LONGEST_DIRECTORY:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=FALLBACK))
    return directory


def remove_directory(directory: Path) -> None:
    """Remove a directory with all that is in it."""
    shutil.rmtree(directory, ignore_errors=True)


@functools.cache
def sweep_directories() -> None:
    """Remove, once, what sessions that were killed could not remove themselves."""
    for place in {Path(tempfile.gettempdir()), FALLBACK, MEMORY}:
        for directory in place.glob("kadril-*-*-*"):
            match = re.match(r"kadril-(?:pool|mpi|ranks|hosts|session)-(\d+)-", directory.name)
            if match and state_of(int(match[1])) == "dead" and is_mine(directory):
                remove_directory(directory)


def is_mine(directory: Path) -> bool:
    """Whether a directory belongs to this user."""
    try:
        return directory.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


class Rendezvous:
    """Path, secret and job by which the ranks of one world find each other.

    The session binds and listens before any rank is told, so that ranks may come in any order.
    """

    def __init__(self, directory: Path, label: str, size: int) -> None:
        self.path = directory / f"{label}.sock"
        self.secret = secrets.token_bytes(32)
        self.job = secrets.token_hex(8)
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.bind(os.fspath(self.path))
            self.socket.listen(size)
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> None:
        """Remove the socket; ranks that have connected do not need it."""
        self.socket.close()
        self.path.unlink(missing_ok=True)
