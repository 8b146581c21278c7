"""State as it is kept outside of an optimizer: pieces of parameters, from any number of ranks.

    parameter  | piece of rank 0 | piece of rank 1 | ...      as it was stored
               | piece 0     | piece 1    | piece 2  |        as it is wanted

A value of the state is one of

    cut      an element for each element of the piece (momentum, variance): can be cut anywhere
    scalar   one for the whole parameter (number of steps): every piece has it
    whole    anything else: belongs to the whole parameter
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.ownership.memory_order import flat_order, shaped
from kadril.sharded.ownership.ownership_plan import Entry

__all__ = [
    "SCALAR_KEYS",
    "StoredParameter",
    "StoredPiece",
    "StoredState",
    "StoredValue",
    "describe_value",
    "unknown_parameter",
]

# Values that are one number for a parameter also where the parameter is one number.
SCALAR_KEYS = frozenset({"eta", "mu", "mu_product", "step"})


@dataclasses.dataclass(frozen=True)
class StoredValue:
    """One value of the state of a piece.

    Attributes:
        kind: "cut", "scalar" or "whole".
        fetch: gives it: cut ones flat, in the order of memory.
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
        name: of it.
        shape: of it.
        dtype: as text, or None where it is not known.
        dims: in the order of memory.
        pieces: in the order of their elements.
        group: number of its parameter group.
        is_partial: whether elements may be missing, since nobody here needs them.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str | None
    dims: tuple[int, ...]
    pieces: tuple[StoredPiece, ...]
    group: int
    is_partial: bool = False

    def names_of_values(self) -> list[str]:
        """Names of the values."""
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
        """A value for elements [begin, end) of a parameter as it is now.

        Raises:
            CheckpointError: it belongs to the whole parameter, and that is not wanted.
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
        """Elements [begin, end) in the order in which they were stored."""
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
        optimizer: name of the class, or None where it is not known.
        groups: options of each parameter group.
        parameters: in the order in which they were trained.
        keeps_dtypes: whether values have the dtypes that the optimizer gave them, so that they are
            to keep them; a plain state_dict is taken as torch takes it, in those of parameters.
    """

    optimizer: str | None
    groups: Sequence[Mapping[str, Any]]
    parameters: Sequence[StoredParameter]
    keeps_dtypes: bool = True

    def match(
        self, entries: Sequence[Entry], optimizer: torch.optim.Optimizer
    ) -> list[StoredParameter]:
        """The stored parameter of each parameter there is.

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
        """Parameters in the order of those there are."""
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
    """What to raise for state of a parameter that there is not."""
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
    """Whether a parameter was given without a name."""
    return name.startswith("parameter.")


def check_parameter(stored: StoredParameter, entry: Entry) -> None:
    """Raise `CheckpointError` where a parameter is not the one whose state was stored."""
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
    """What a value in an optimizer's state is.

    Args:
        key: its name.
        value: a tensor or a number.
        piece_shape: of the piece that it is the state of.
        dims: order of the piece's dims in memory; None where it is flat.
    """
    if not isinstance(value, torch.Tensor):
        return StoredValue("scalar", lambda: value)
    if value.dim() == 0 and (piece_shape or key in SCALAR_KEYS):
        return StoredValue("scalar", value.detach)
    if tuple(value.shape) == piece_shape:
        if dims is None:
            return StoredValue("cut", value.detach)
        order = tuple(dims)
        return StoredValue("cut", lambda: flat_order(value.detach(), order))
    return StoredValue("whole", value.detach)
