"""State outside of an optimizer: pieces of parameters, from any number of ranks.

parameter  | piece of rank 0 | piece of rank 1 | ...      as it was stored
| piece 0     | piece 1    | piece 2  |        as it is wanted
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.ownership.memory_order import flat_order, shaped
from kadril.sharded.ownership.ownership_plan import Entry
from kadril.sharded.state.value_kinds import kind_of

__all__ = [
    "StoredParameter",
    "StoredPiece",
    "StoredState",
    "StoredValue",
    "describe_value",
    "unknown_parameter",
]


@dataclasses.dataclass(frozen=True)
class StoredValue:
    """One value of the state of a piece.

    Attributes:
        kind: "cut", "scalar" or "whole"; see value_kinds.py.
        fetch: returns the value; a cut one flat, in the order of memory.
    """

    kind: str
    fetch: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class StoredPiece:
    """State of elements [begin, end) of a parameter, in the order of its memory."""

    begin: int
    end: int
    values: Mapping[str, StoredValue]


@dataclasses.dataclass(frozen=True)
class StoredParameter:
    """A parameter, as it was when its state was stored.

    Attributes:
        name: its name.
        shape: its shape.
        dtype: its dtype as text, or None where it is not known.
        dims: its dims in the order of memory, the slowest first.
        pieces: stored pieces, in the order of their elements.
        group: number of its parameter group.
        is_partial: whether elements may be missing because this rank does not need them.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str | None
    dims: tuple[int, ...]
    pieces: tuple[StoredPiece, ...]
    group: int
    is_partial: bool = False

    def names_of_values(self) -> list[str]:
        """Return the names of the values."""
        return list(self.pieces[0].values) if self.pieces else []

    def check_whole(self) -> None:
        """Raise `CheckpointError` where elements are missing."""
        if self.is_partial:
            return
        end = 0
        for piece in self.pieces:
            if piece.begin != end:
                break
            end = piece.end
        num_elements = torch.Size(self.shape).numel()
        if end != num_elements or not self.pieces:
            raise CheckpointError(
                f"elements from {end} on of parameter {self.name!r}, which has {num_elements}, are"
                " missing: a shard is not there. Give the shards of all ranks that saved",
                parameter=self.name,
            )

    def read(self, key: str, entry: Entry, begin: int, end: int) -> Any:
        """Return a value for elements [begin, end) of the parameter as it is now.

        Raises:
            CheckpointError: the value belongs to the whole parameter, and a part is asked for.
        """
        value = self.pieces[0].values[key]
        if value.kind == "scalar":
            return value.fetch()
        if value.kind == "whole":
            if end - begin != entry.num_elements:
                raise CheckpointError(
                    f"state {key!r} of parameter {entry.name!r} belongs to the whole parameter and"
                    " cannot be cut; make the trainer with rule='largest_first'",
                    parameter=entry.name,
                )
            return value.fetch()
        if self.dims == entry.dims:
            return self.range(key, begin, end)
        whole = self.range(key, 0, entry.num_elements)
        return flat_order(shaped(whole, entry.shape, self.dims), entry.dims)[begin:end].clone()

    def range(self, key: str, begin: int, end: int) -> torch.Tensor:
        """Return elements [begin, end) of a cut value, in the order in which they were stored."""
        parts: list[torch.Tensor] = []
        for piece in self.pieces:
            first, last = max(begin, piece.begin), min(end, piece.end)
            if first < last or (begin == end and not parts):
                flat = piece.values[key].fetch()
                parts.append(flat[max(first - piece.begin, 0) : last - piece.begin])
        if sum(part.numel() for part in parts) != end - begin:
            raise CheckpointError(
                f"elements {begin} to {end} of parameter {self.name!r} are not all there: this is"
                " the part of another rank. Give the state_dicts of all ranks in a list",
                parameter=self.name,
            )
        return parts[0].clone() if len(parts) == 1 else torch.cat(parts)


@dataclasses.dataclass(frozen=True)
class StoredState:
    """State of all parameters.

    Attributes:
        optimizer: name of the optimizer's class, or None where it is not known.
        groups: options of each parameter group.
        parameters: parameters in the order in which they were trained.
        keeps_dtypes: whether values keep their dtypes, which the optimizer gave them; those of a
            plain state_dict are cast to the dtype of the parameter, as torch does.
    """

    optimizer: str | None
    groups: Sequence[Mapping[str, Any]]
    parameters: Sequence[StoredParameter]
    keeps_dtypes: bool = True

    def match(
        self, entries: Sequence[Entry], optimizer: torch.optim.Optimizer
    ) -> list[StoredParameter]:
        """Return the stored parameter for each parameter of a trainer.

        Args:
            entries: parameters of the trainer.
            optimizer: optimizer of the trainer.

        Raises:
            CheckpointError: it is the state of another model or optimizer; names the parameter.
        """
        kind = type(optimizer).__name__
        if self.optimizer is not None and self.optimizer != kind:
            raise CheckpointError(f"the state is that of {self.optimizer}, the trainer has {kind}")
        found = self.by_name(entries)
        for stored, entry in zip(found, entries, strict=True):
            check_parameter(stored, entry)
            stored.check_whole()
        if len(self.groups) != len(optimizer.param_groups):
            raise CheckpointError(
                f"the state has {len(self.groups)} parameter groups, the trainer"
                f" {len(optimizer.param_groups)}"
            )
        for stored, entry in zip(found, entries, strict=True):
            if stored.group != entry.group:
                raise CheckpointError(
                    f"parameter {entry.name!r} is in parameter group {entry.group}, but in group"
                    f" {stored.group} of the state; give the groups in the order that they had",
                    parameter=entry.name,
                )
        return found

    def by_name(self, entries: Sequence[Entry]) -> list[StoredParameter]:
        """Return the stored parameters in the order of those of a trainer."""
        named = {stored.name: stored for stored in self.parameters}
        for entry in entries:
            if entry.name not in named:
                raise CheckpointError(
                    f"there is no state for parameter {entry.name!r}; is it of another model?",
                    parameter=entry.name,
                )
        unknown = named.keys() - {entry.name for entry in entries}
        if unknown:
            raise unknown_parameter(min(unknown), [entry.name for entry in entries])
        return [named[entry.name] for entry in entries]


def unknown_parameter(name: str, known: Sequence[str]) -> CheckpointError:
    """Return the error for state of a parameter that the trainer does not have."""
    hint = "is it of another model?"
    if is_number(name) != all(map(is_number, known)):
        hint = (
            f"those are called {', '.join(map(repr, known[:3]))}, ... Give the module or"
            " named_parameters() in both cases: a list of parameters has no names"
        )
    return CheckpointError(
        f"there is state for a parameter {name!r}, which the trainer does not have; {hint}",
        parameter=name,
    )


def is_number(name: str) -> bool:
    """Whether a name is that of a parameter that was given without one."""
    return name.startswith("parameter.")


def check_parameter(stored: StoredParameter, entry: Entry) -> None:
    """Raise `CheckpointError` for a stored parameter of another shape or dtype."""
    if stored.shape != entry.shape:
        raise CheckpointError(
            f"parameter {entry.name!r} has shape {entry.shape}, but the stored one"
            f" {stored.shape}; is it of another model?",
            parameter=entry.name,
        )
    if stored.dtype is not None and stored.dtype != str(entry.dtype):
        raise CheckpointError(
            f"parameter {entry.name!r} is {entry.dtype}, but the stored one {stored.dtype}",
            parameter=entry.name,
        )


def describe_value(
    key: str, value: Any, piece_shape: tuple[int, ...], dims: Sequence[int] | None
) -> StoredValue:
    """Describe a value in the state of an optimizer.

    Args:
        key: name of the value.
        value: a tensor or a number.
        piece_shape: shape of the piece that it is the state of.
        dims: order of the piece's dims in memory; None where it is flat.
    """
    if not isinstance(value, torch.Tensor):
        return StoredValue("scalar", lambda: value)
    kind = kind_of(key, value.shape, piece_shape)
    if kind != "cut" or dims is None:
        return StoredValue(kind, value.detach)
    order = tuple(dims)
    return StoredValue(kind, lambda: flat_order(value.detach(), order))
