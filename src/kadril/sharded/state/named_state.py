"""State whose parameters are called by name: of one rank, of all ranks, or whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.cut_tensor import CutTensor, Part
from kadril.sharded.optimizer.supported_optimizers import is_elementwise
from kadril.sharded.ownership.group_options import options_of
from kadril.sharded.ownership.ownership_plan import Entry
from kadril.sharded.state.option_check import check_same_kind
from kadril.sharded.state.stored_state import (
    StoredParameter,
    StoredPiece,
    StoredState,
    StoredValue,
    describe_value,
    unknown_parameter,
)
from kadril.sharded.state.value_kinds import wrong_shape

__all__ = ["read_named"]


def read_named(
    given: Sequence[Mapping[str, Any]],
    entries: Sequence[Entry],
    optimizer: torch.optim.Optimizer,
    part: Part | None,
) -> StoredState:
    """Read state with parts of parameters, as `state_dict()` gives it, or with whole ones.

    Args:
        given: state_dicts of all ranks, or of one.
        entries: parameters of the trainer.
        optimizer: optimizer that the state is for.
        part: part of this rank, if `given` is of this rank alone.

    Raises:
        CheckpointError: it is of another model or optimizer, or of other ranks.
    """
    if part is not None:
        check_is_own(given, part)
    groups = given[0]["param_groups"]
    options = [options_of(group) for group in groups]
    check_same_kind(options, optimizer)
    known = {entry.name: entry for entry in entries}
    parameters = []
    named = [(name, number) for number, group in enumerate(groups) for name in group["params"]]
    for name, number in named:
        if name not in known:
            raise unknown_parameter(str(name), list(known))
        parameters.append(
            read_parameter(known[name], number, given, optimizer, is_partial=part is not None)
        )
    if part is None:
        check_all_there(given, parameters)
    return StoredState(None, options, parameters)


def parts_of(given: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    """Yield which part each tensor in some state_dicts belongs to."""
    for each in given:
        for values in each["state"].values():
            for value in values.values():
                if isinstance(value, CutTensor):
                    yield value.part


def check_is_own(given: Sequence[Mapping[str, Any]], part: Part) -> None:
    """Raise `CheckpointError` for state of another rank than this one."""
    for found in parts_of(given):
        if found != part:
            raise CheckpointError(
                f"the state_dict is that of {found}, this is {part}; give the state_dicts of all"
                " ranks in a list, or use save() and load()"
            )


def check_all_there(
    given: Sequence[Mapping[str, Any]], parameters: Sequence[StoredParameter]
) -> None:
    """Raise `CheckpointError` where the part of a rank is missing; it names a parameter."""
    for parameter in parameters:
        parameter.check_whole()
    num_ranks = next((part.num_ranks for part in parts_of(given)), len(given))
    found = [next((part.rank for part in parts_of([each])), None) for each in given]
    ranks = [rank for rank in found if rank is not None]
    if len(set(ranks)) != len(ranks):
        raise CheckpointError(
            f"the state_dicts given are of ranks {ranks}; give that of each rank once"
        )
    if num_ranks != len(given):
        # Parameters that a missing rank owns whole look like parameters without state.
        name = next((each.name for each in parameters if not each.pieces), "")
        raise CheckpointError(
            f"{len(given)} state_dicts are given, but they are of {num_ranks} ranks: a shard is"
            f" missing{f', with the state of parameter {name!r}' if name else ''}. Give those of"
            " all ranks that saved",
            parameter=name,
        )


def read_parameter(
    entry: Entry,
    group: int,
    given: Sequence[Mapping[str, Any]],
    optimizer: torch.optim.Optimizer,
    *,
    is_partial: bool,
) -> StoredParameter:
    """Read the state of one parameter."""
    dims = tuple(range(len(entry.shape)))
    pieces = []
    for each in given:
        values = each["state"].get(entry.name)
        if not values:
            continue
        begin, end = 0, entry.num_elements
        for value in values.values():
            if isinstance(value, CutTensor) and tuple(value.shape) == entry.shape:
                begin, end, dims = value.begin, value.end, value.dims
        described = {key: describe_named(key, value, entry) for key, value in values.items()}
        for key, value in described.items():
            if value.kind == "whole" and is_elementwise(type(optimizer)):
                raise wrong_shape(key, values[key].shape, entry)
        pieces.append(StoredPiece(begin, end, described))
    pieces.sort(key=lambda piece: piece.begin)
    return StoredParameter(
        entry.name, entry.shape, None, dims, tuple(pieces), group, is_partial or not pieces
    )


def describe_named(key: str, value: Any, entry: Entry) -> StoredValue:
    """Describe a value, which may be a part of a tensor."""
    if not isinstance(value, CutTensor):
        return describe_value(key, value, entry.shape, tuple(range(len(entry.shape))))
    if tuple(value.shape) == entry.shape:
        return StoredValue("cut", lambda: value.local)
    return StoredValue("whole", value.whole)
