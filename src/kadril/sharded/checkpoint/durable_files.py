"""Files that survive a crash: durable writes, checksums, and the reasons of failures."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["checksum", "durable_file", "failure_reason", "log_untidy", "sync_directory"]

logger = logging.getLogger("kadril")

CHUNK_BYTES = 1 << 20


@contextlib.contextmanager
def durable_file(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file for writing; its contents are durable when the `with` block ends."""
    with path.open(mode, encoding=None if "b" in mode else "utf-8") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def log_untidy(directory: Path) -> Iterator[None]:
    """Log an `OSError`, no more: the checkpoint is in place, and only tidying up is left."""
    try:
        yield
    except OSError as error:
        logger.warning("%s is saved, but could not be tidied up: %s", directory, error)


def failure_reason(error: BaseException) -> str:
    """Return the reason of a failure in one line, such as "No space left on device (ENOSPC)".

    Torch wraps what the system said in errors of its own, with tracebacks in their text.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            code = errno.errorcode.get(cause.errno, str(cause.errno))
            return f"{cause.strerror} ({code})"
        cause = cause.__cause__ or cause.__context__
    return str(error) or repr(error)
