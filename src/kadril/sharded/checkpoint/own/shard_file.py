"""One shard: the values of pieces of parameters in a file.

    | magic, 8 bytes | length of the header, 8 bytes | header, JSON | bytes of all tensors |

The header says for each piece which elements it has, and for each value its kind, dtype, shape and
where its bytes lie. Values are read one by one, after the checksum of the file was compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.checkpoint.durable_files import checksum, durable_file
from kadril.sharded.state.layout import ALIGNMENT, lay_out, read_layout
from kadril.sharded.state.stored_state import StoredPiece
from kadril.sharded.state.value_kinds import dtype_from

__all__ = ["PARAMETER", "STATE", "ShardFile", "write_shard"]

MAGIC = b"KADRILS1"

# Names of values in a shard: the parameter's own elements, and before each value of its state.
PARAMETER = "parameter"
STATE = "state."


def write_shard(path: Path, pieces: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Write pieces to a new file, and make it durable.

    Args:
        path: path of the file.
        pieces: elements and values of each piece, by name of parameter.

    Returns:
        Name, size, checksum, and the first and last parameter in it, for the index.

    Raises:
        CheckpointError: a value is neither a tensor nor anything that JSON can hold. It names the
            parameter.
        OSError: the file could not be written.
    """
    header, tensors, _ = lay_out(pieces)
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 16) % ALIGNMENT)
    digest = hashlib.sha256()
    part = path.with_name(f"{path.name}.part")
    with durable_file(part, "wb") as file:
        for chunk in chunks(MAGIC + len(text).to_bytes(8, "little") + text, tensors):
            digest.update(chunk)
            file.write(chunk)
        size = file.tell()
    part.replace(path)
    names = list(pieces)
    return {
        "name": path.name,
        "size": size,
        "sha256": digest.hexdigest(),
        "parameters": [*names[:1], *names[-1:]],
    }


def chunks(head: bytes, tensors: list[torch.Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a shard in order."""
    yield head
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield flat.numpy().data
        yield bytes(-flat.numel() % ALIGNMENT)


class ShardFile:
    """A shard to read from.

    Args:
        path: path of the file.
        expected: size and checksum, as the index has them.

    Raises:
        CheckpointError: it is missing, or not of the expected size, or has no header.
    """

    def __init__(self, path: Path, expected: Mapping[str, Any]) -> None:
        self.path = path
        self._expected = expected
        self._was_compared = False
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise self.error(
                "is missing; the checkpoint cannot be loaded without it. Copy the directory with"
                " all its files, where all ranks can see it"
            ) from None
        if size != expected["size"]:
            raise self.error(f"has {size} bytes, the index says {expected['size']}: it is damaged")
        with path.open("rb") as file:
            head = file.read(16)
            length = int.from_bytes(head[8:], "little")
            text = file.read(length) if head[:8] == MAGIC and length < size else b""
        try:
            self._header = json.loads(text)
        except ValueError:
            raise self.error("is damaged: it has no header") from None
        self._begin = 16 + length

    def error(self, words: str) -> CheckpointError:
        """Return the error to raise; it says which parameters are lost."""
        names = self._expected.get("parameters", [])
        parts = f" (parts of parameters {names[0]!r} to {names[-1]!r})" if names else ""
        return CheckpointError(
            f"shard {self.path}{parts} {words}",
            parameter=names[0] if names else "",
            path=str(self.path),
        )

    def pieces(self) -> Iterator[tuple[str, StoredPiece]]:
        """Yield the name of the parameter and the piece, for each piece."""
        return read_layout(self._header, self.read)

    def read(self, described: Mapping[str, Any]) -> torch.Tensor:
        """Read a tensor from the file."""
        self.compare()
        dtype = dtype_from(described["dtype"])
        shape = described["shape"]
        count = torch.Size(shape).numel()
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        with self.path.open("rb") as file:
            file.seek(self._begin + described["offset"])
            data = bytearray(file.read(count * dtype.itemsize))
        return torch.frombuffer(data, dtype=dtype).reshape(shape)

    def compare(self) -> None:
        """Raise `CheckpointError` if the checksum of the file is wrong; computed once."""
        if self._was_compared:
            return
        if checksum(self.path) != self._expected["sha256"]:
            raise self.error("is damaged: its checksum is not the one in the index")
        self._was_compared = True
