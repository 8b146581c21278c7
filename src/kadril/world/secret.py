"""The job's secret, and the private directory where ranks of one host find it.

    kadril-XXXXXXXX/          0700, owned by the user of the job
        secret                0600, 32 random bytes
        rendezvous.sock       0600, the listening socket of the hub

The secret travels as a file that only its owner can read: never in an argument, where `ps` shows
it, and never in a variable, which every child inherits and many programs print.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from kadril.errors import RendezvousError
from kadril.world.handshake import SECRET_BYTES

__all__ = ["PrivateDirectory", "check_directory", "read_secret"]


class PrivateDirectory:
    """A directory with a fresh secret, for the ranks of one user on one host; a context manager.

    Attributes:
        path: of the directory.
        secret: the bytes in its file `secret`.
    """

    def __init__(self) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix="kadril-"))
        except OSError as error:
            raise RendezvousError(
                f"cannot make a private directory: {error}. Set TMPDIR to one that can be written"
            ) from error
        try:
            self.secret = secrets.token_bytes(SECRET_BYTES)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(self.secret_file, flags, 0o600), "wb") as file:
                file.write(self.secret)
        except BaseException:
            self.remove()
            raise

    @property
    def secret_file(self) -> str:
        """Path of the file with the secret."""
        return str(self.path / "secret")

    @property
    def socket_path(self) -> str:
        """Path for the hub's socket."""
        return str(self.path / "rendezvous.sock")

    def remove(self) -> None:
        """Remove it with all that is in it; may be called again."""
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> PrivateDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def read_secret(path: str) -> bytes:
    """Read the secret of a job from a file that only this user can read.

    Raises:
        RendezvousError: the file is missing, belongs to another user, can be read by others, or is
            not as long as a secret.
    """
    try:
        # Without waiting, should the name lead to a pipe.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except OSError as error:
        raise RendezvousError(
            f"cannot read the job's secret from {path}: {error.strerror}."
            + (
                " Raise the limit: ulimit -n"
                if error.errno in (errno.EMFILE, errno.ENFILE)
                else " Is the launcher that made it still there?"
            )
        ) from error
    try:
        # Of the opened file, not of its name: the name may point elsewhere a moment later.
        check_private(path, os.fstat(descriptor), stat.S_ISREG, "a file")
        secret = os.read(descriptor, SECRET_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(secret) != SECRET_BYTES:
        raise RendezvousError(
            f"the job's secret in {path} must be {SECRET_BYTES} bytes long."
            f" Make one with: head -c {SECRET_BYTES} /dev/urandom > {path}"
        )
    return secret


def check_directory(path: str) -> None:
    """Check that a directory is this user's, and closed to all others.

    Raises:
        RendezvousError: it is not.
    """
    try:
        status = os.lstat(path)
    except OSError as error:
        raise RendezvousError(
            f"cannot look at the rendezvous directory {path}: {error.strerror}"
        ) from error
    check_private(path, status, stat.S_ISDIR, "a directory")


def check_private(
    path: str, status: os.stat_result, is_kind: Callable[[int], bool], kind: str
) -> None:
    """Check kind, owner and mode of a file or directory that keeps a secret."""
    if not is_kind(status.st_mode):
        raise RendezvousError(f"{path} must be {kind}, and not a link to one")
    if status.st_uid != os.geteuid():
        raise RendezvousError(
            f"{path} belongs to user {status.st_uid}, this rank runs as user {os.geteuid()}:"
            " a secret of somebody else is not to be trusted. Run all ranks as one user"
        )
    if status.st_mode & 0o077:
        raise RendezvousError(
            f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, so others can get at the job's"
            f" secret. Close it with: chmod go-rwx {path}"
        )
