"""Values of pieces of parameters one after the other, in a file or in memory.

A header says for each piece which elements it has, and for each value its kind, dtype, shape and
where its bytes begin; numbers are in it as they are. It can be written as JSON. The bytes of all
tensors follow in order, each beginning at a multiple of `ALIGNMENT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from kadril.sharded.state.stored_state import StoredPiece, StoredValue
from kadril.sharded.state.value_kinds import check_storable

__all__ = ["ALIGNMENT", "lay_out", "read_layout"]

ALIGNMENT = 64


def lay_out(
    pieces: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], list[torch.Tensor], int]:
    """Return the header of pieces, their tensors in order, and the number of bytes of these.

    Args:
        pieces: elements and values of each piece, by name of parameter.

    Raises:
        CheckpointError: a value is neither a tensor nor anything that JSON can hold. It names the
            parameter.
    """
    tensors: list[torch.Tensor] = []
    header: dict[str, Any] = {}
    end = 0
    for name, piece in pieces.items():
        values: dict[str, Any] = {}
        for key, item in piece["state"].items():
            value = item["value"]
            if not isinstance(value, torch.Tensor):
                check_storable(value, key, name)
                values[key] = {"kind": item["kind"], "number": value}
                continue
            tensors.append(value)
            values[key] = {
                "kind": item["kind"],
                "dtype": str(value.dtype).removeprefix("torch."),
                "shape": list(value.shape),
                "offset": end,
            }
            end += -(-value.numel() * value.element_size() // ALIGNMENT) * ALIGNMENT
        header[name] = {"begin": piece["begin"], "end": piece["end"], "values": values}
    return header, tensors, end


def read_layout(
    header: Mapping[str, Any], read: Callable[[Mapping[str, Any]], torch.Tensor]
) -> Iterator[tuple[str, StoredPiece]]:
    """Yield the name of the parameter and the piece, for each piece.

    Args:
        header: from `lay_out`.
        read: returns a tensor, given what the header says of it; called when it is fetched.
    """
    for name, piece in header.items():
        values = {key: stored_value(value, read) for key, value in piece["values"].items()}
        yield name, StoredPiece(piece["begin"], piece["end"], values)


def stored_value(
    described: Mapping[str, Any], read: Callable[[Mapping[str, Any]], torch.Tensor]
) -> StoredValue:
    """Return a value that is read when it is fetched."""
    if "dtype" not in described:
        return StoredValue(described["kind"], lambda: described["number"])
    return StoredValue(described["kind"], partial(read, described))
