"""Checksums of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["checksum"]

CHUNK = 1 << 20


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
