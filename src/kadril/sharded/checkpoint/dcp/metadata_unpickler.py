"""An unpickler for the metadata of torch.distributed.checkpoint that makes nothing else.

A pickle may name any function, which is called when it is read; a checksum beside it says only that
the file is whole, not who wrote it.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata

from kadril.errors import CheckpointError

__all__ = ["read_metadata"]

# What metadata is made of besides the classes of its own module, dtypes and plain values.
ALLOWED = {
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "slice"),
    ("builtins", "complex"),
    ("collections", OrderedDict.__name__),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    (filesystem.__name__, "_StorageInfo"),
}


class MetadataUnpickler(pickle.Unpickler):
    """An unpickler that makes metadata, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that metadata may have.

        Raises:
            UnpicklingError: it is another one.
        """
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        found = getattr(metadata, name, None) if module == metadata.__name__ else None
        if isinstance(found, type) and found.__module__ == module:
            return found
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no metadata has")


def read_metadata(data: bytes, path: Path) -> metadata.Metadata:
    """Read the metadata of a checkpoint.

    Args:
        data: content of the file.
        path: of the file, for errors.

    Raises:
        CheckpointError: it is no metadata, or asks for more than that; nothing of it was called.
    """
    try:
        found = MetadataUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # whatever its bytes make the unpickler stumble over
        raise CheckpointError(f"{path} was not read: {error}", path=str(path)) from error
    if not isinstance(found, metadata.Metadata):
        raise CheckpointError(f"{path} holds no metadata of a checkpoint", path=str(path))
    return found
