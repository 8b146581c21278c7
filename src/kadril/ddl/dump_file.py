"""Dump files: what a rank knew when a checked all-reduce failed.

    kadril ddl.dump 1
    {"rank": 1, "size": 2, ... "arrays": [{"name": "input", "dtype": "float32", ...}, ...]}
    <the arrays, one after the other, as plain little-endian elements>

The head is text, so `head -n 40 ddl.dump000` shows most of it; nothing is pickled, so a file from a
stranger can be read without fear. Each rank that saw the failure writes a file of its own, with the
next free number: it is written beside its place and then linked to it, so that nobody sees half a
file, and no rank takes the number of another.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kadril.ddl.packing import DTYPE_OF_NAME
from kadril.transport.buffer import as_bytes

__all__ = ["Dump", "read_dump", "write_dump"]

MAGIC = "kadril ddl.dump 1"
PREFIX = "ddl.dump"
MAX_NUMBER = 1_000_000


class Dump(NamedTuple):
    """A dump file.

    Attributes:
        facts: what the head says; see `failure.py` for its entries.
        arrays: flat tensors, by name: "input", "value", "reference".
    """

    facts: dict[str, Any]
    arrays: dict[str, torch.Tensor]


def write_dump(
    facts: Mapping[str, Any], arrays: Mapping[str, torch.Tensor], directory: Path
) -> Path:
    """Write a file with the next free number in a directory; return its path.

    Raises:
        OSError: it cannot be written.
    """
    flat = {name: array.detach().contiguous().reshape(-1) for name, array in arrays.items()}
    listed = [
        {"name": name, "dtype": str(each.dtype).removeprefix("torch."), "count": each.numel()}
        for name, each in flat.items()
    ]
    head = json.dumps({**facts, "arrays": listed}, indent=1)
    descriptor, draft = tempfile.mkstemp(prefix=f".{PREFIX}.", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(f"{MAGIC} {len(head)}\n{head}\n".encode())
            for each in flat.values():
                file.write(as_bytes(each).tobytes())
        return link_to_number(Path(draft), directory)
    finally:
        Path(draft).unlink()


def link_to_number(draft: Path, directory: Path) -> Path:
    """Give a complete file the next free number."""
    for number in range(MAX_NUMBER):
        path = directory / f"{PREFIX}{number:03d}"
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{directory} has {MAX_NUMBER} files {PREFIX}*; remove some")


def read_dump(path: str | os.PathLike[str]) -> Dump:
    """Read a dump file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a dump file, or not a whole one.
    """
    data = Path(path).read_bytes()
    try:
        first, _, rest = data.partition(b"\n")
        magic, _, length = first.decode().rpartition(" ")
        if magic != MAGIC:
            raise ValueError(f"it begins with {first[:40]!r}")
        num_bytes = int(length)
        facts: dict[str, Any] = json.loads(rest[:num_bytes])
        return Dump(facts, dict(read_arrays(facts.pop("arrays"), rest[num_bytes + 1 :])))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is no whole file of kind {MAGIC!r}: {error}") from None


def read_arrays(listed: Any, data: bytes) -> list[tuple[str, torch.Tensor]]:
    """Read the arrays that a head lists."""
    arrays, begin = [], 0
    for each in listed:
        dtype, count = DTYPE_OF_NAME[each["dtype"]], int(each["count"])
        end = begin + count * dtype.itemsize
        if count < 0 or end > len(data):
            raise ValueError(f"array {each['name']} ends at byte {end} of {len(data)}")
        memory = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype) if count else None
        arrays.append(
            (str(each["name"]), torch.empty(0, dtype=dtype) if memory is None else memory)
        )
        begin = end
    if begin != len(data):
        raise ValueError(f"{len(data) - begin} bytes are left over")
    return arrays
