"""JSON objects from another process, read strictly: the right fields and types, a limited size."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kadril.errors import RendezvousError

__all__ = ["MAX_OBJECT_BYTES", "pack", "unpack"]

MAX_OBJECT_BYTES = 64 * 1024


def pack(values: Mapping[str, object]) -> bytes:
    """An object as JSON."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode()


def unpack(blob: bytes, schema: Mapping[str, type], sender: str) -> dict[str, object]:
    """Read an object that has exactly the fields of `schema`, each of its type.

    Args:
        blob: what was received.
        schema: type of each field.
        sender: whom to name in the error.

    Raises:
        RendezvousError: it is too long, not JSON, or of another shape.
    """
    if len(blob) > MAX_OBJECT_BYTES:
        raise RendezvousError(f"{sender} sent {len(blob)} bytes, more than {MAX_OBJECT_BYTES}")
    try:
        values = json.loads(blob)
    except (ValueError, RecursionError) as error:
        raise RendezvousError(f"{sender} sent what is not JSON: {blob[:40]!r}") from error
    if not isinstance(values, dict):
        raise RendezvousError(f"{sender} sent {type(values).__name__} where an object was due")
    if values.keys() != schema.keys():
        raise RendezvousError(
            f"{sender} sent the fields {sorted(values)[:20]} where {sorted(schema)} were due."
            " Do all ranks run the same version of kadril?"
        )
    for name, kind in schema.items():
        # Exactly that type: True is an int to isinstance.
        if type(values[name]) is not kind:
            raise RendezvousError(
                f"{sender} sent {name} as {type(values[name]).__name__} where {kind.__name__} was"
                " due"
            )
    return values
