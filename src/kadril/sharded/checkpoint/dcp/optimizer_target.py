"""Memory to load the state of one optimizer into, made from the metadata of a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from kadril.errors import CheckpointError
from kadril.sharded.optimizer.supported_optimizers import is_elementwise
from kadril.sharded.ownership.bucket import OwnPiece
from kadril.sharded.ownership.ownership_plan import Entry
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.state.own_state import as_part, whole_as_part
from kadril.sharded.state.stored_state import unknown_parameter
from kadril.sharded.state.value_kinds import kind_of, wrong_shape

__all__ = ["optimizer_target"]


def optimizer_target(
    shards: Shards, optimizer: torch.optim.Optimizer, metadata: Metadata, prefix: str
) -> dict[str, Any]:
    """Return a state_dict of this rank with room for all state that a checkpoint has for it.

    Args:
        shards: the parameters.
        optimizer: optimizer of this rank's pieces.
        metadata: metadata of the checkpoint.
        prefix: key of the optimizer in the checkpoint.

    Raises:
        CheckpointError: the checkpoint has no such state, or that of another model.
    """
    entries = shards.parameters.entries()
    places = {entry.name: place for place, entry in enumerate(entries)}
    state: dict[str, dict[str, Any]] = {}
    for key, stored in metadata.state_dict_metadata.items():
        if not key.startswith(f"{prefix}.state."):
            continue
        name, _, value = key.removeprefix(f"{prefix}.state.").rpartition(".")
        if name not in places:
            raise unknown_parameter(name, list(places))
        place = places[name]
        if isinstance(stored, TensorStorageMetadata) and is_elementwise(type(optimizer)):
            check_value(value, stored, entries[place])
        own = shards.own_piece(place)
        if own is not None:
            state.setdefault(name, {})[value] = value_target(value, stored, shards, own)
    return {"state": state, "param_groups": group_targets(metadata, prefix)}


def check_value(key: str, stored: TensorStorageMetadata, entry: Entry) -> None:
    """Raise `CheckpointError` for a value that no elementwise optimizer has for a parameter."""
    if not stored.size:
        return
    if tuple(stored.size) != entry.shape:
        raise wrong_shape(key, stored.size, entry)
    if stored.properties.dtype != entry.dtype:
        raise CheckpointError(
            f"state {key!r} of parameter {entry.name!r} is {stored.properties.dtype}, but the"
            f" parameter {entry.dtype}",
            parameter=entry.name,
        )


def value_target(key: str, stored: Any, shards: Shards, own: OwnPiece) -> Any:
    """Return memory for one value: None for what is not a tensor, which is replaced."""
    if not isinstance(stored, TensorStorageMetadata):
        return None
    entry = shards.bucket_of(own.piece.entry).entry_of(own.piece)
    dtype = stored.properties.dtype
    kind = kind_of(key, stored.size, entry.shape)
    if kind == "scalar":
        return torch.empty((), dtype=dtype)
    if kind == "cut":
        flat = torch.zeros(own.piece.num_elements, dtype=dtype, device=entry.device)
        return as_part(flat, shards, own)
    flat = torch.zeros(torch.Size(stored.size).numel(), dtype=dtype, device=entry.device)
    return whole_as_part(flat, tuple(stored.size), shards)


def group_targets(metadata: Metadata, prefix: str) -> list[dict[str, Any]]:
    """Return parameter groups with room for their options.

    Raises:
        CheckpointError: the checkpoint has no parameter groups, or none that list names.
    """
    found: dict[int, dict[str, Any]] = {}
    for key, stored in metadata.state_dict_metadata.items():
        if not key.startswith(f"{prefix}.param_groups."):
            continue
        number, _, option = key.removeprefix(f"{prefix}.param_groups.").partition(".")
        if not number.isdecimal():
            raise CheckpointError(
                f"the checkpoint has {key!r}: options of each parameter rather than of groups. Save"
                " it without flatten_optimizer_state_dict"
            )
        is_tensor = isinstance(stored, TensorStorageMetadata)
        found.setdefault(int(number), {})[option] = (
            torch.empty(stored.size, dtype=stored.properties.dtype) if is_tensor else None  # type: ignore[union-attr]
        )
    if not all("params" in group for group in found.values()) or not found:
        begins = sorted({key.partition(".")[0] for key in metadata.state_dict_metadata})
        raise CheckpointError(
            f"the checkpoint has no state of an optimizer under {prefix!r}, where parameters are"
            f" called by name; it has {', '.join(map(repr, begins))}"
        )
    return [found[number] for number in sorted(found)]
