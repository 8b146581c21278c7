"""State whose parameters are called by name: of one rank, of all ranks, or whole."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.cut_tensor import CutTensor, Part
from kadril.sharded.optimizer.optimizers import is_elementwise
from kadril.sharded.ownership.ownership_plan import Entry
from kadril.sharded.state.stored_state import (
    StoredParameter,
    StoredPiece,
    StoredState,
    StoredValue,
    describe_value,
    unknown_parameter,
)

__all__ = ["check_options", "read_named"]

# What torch's schedulers write into groups, beside the options of the optimizer.
SCHEDULED = frozenset({"base_momentum", "initial_lr", "max_lr", "max_momentum", "min_lr", "swa_lr"})

# What torch's optimizers have not had from the first; they fill it in themselves.
LATER = frozenset(
    {
        "amsgrad",
        "capturable",
        "centered",
        "decoupled_weight_decay",
        "differentiable",
        "foreach",
        "fused",
        "maximize",
        "nesterov",
    }
)


def read_named(
    given: Sequence[Mapping[str, Any]],
    entries: Sequence[Entry],
    optimizer: torch.optim.Optimizer,
    part: Part | None,
) -> StoredState:
    """State as `state_dict()` gives it, with parts of parameters or with whole ones.

    Args:
        given: of all ranks, or of one.
        entries: parameters there are.
        optimizer: that it is for.
        part: of this rank, where `given` is of this rank alone.

    Raises:
        CheckpointError: it is of another model or optimizer, or of other ranks.
    """
    if part is not None:
        check_is_own(given, part)
    groups = given[0]["param_groups"]
    options = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in groups
    ]
    check_options(options, optimizer)
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
    """Whose parts there are."""
    for each in given:
        for values in each["state"].values():
            for value in values.values():
                if isinstance(value, CutTensor):
                    yield value.part


def check_is_own(given: Sequence[Mapping[str, Any]], part: Part) -> None:
    """Raise `CheckpointError` for what has not all that this rank needs."""
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
        # Those that a missing rank has all of look like parameters without state.
        name = next((each.name for each in parameters if not each.pieces), "")
        raise CheckpointError(
            f"{len(given)} state_dicts are given, but they are of {num_ranks} ranks: a shard is"
            f" missing{f', with the state of parameter {name!r}' if name else ''}. Give those of"
            " all ranks that saved",
            parameter=name,
        )


def check_options(groups: Sequence[Mapping[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    """Raise `CheckpointError` for the options of another kind of optimizer.

    Groups that only have more, as users and schedulers add to them, or only have less, as other
    versions of torch do, are of this kind; and so are those that have some of both.

    Args:
        groups: options of each parameter group, without its parameters.
        optimizer: that they are for.
    """
    known = optimizer.defaults.keys()
    for group in groups:
        unknown, missing = group.keys() - known - SCHEDULED, known - group.keys()
        foreign = unknown & distinctive_options()
        if (foreign and missing) or (unknown and missing - LATER):
            raise CheckpointError(
                f"the state is of an optimizer with option {min(foreign or unknown)!r} and without"
                f" {min(missing - LATER or missing)!r}; the trainer has {type(optimizer).__name__}"
            )


@functools.cache
def distinctive_options() -> frozenset[str]:
    """Options that tell torch's optimizers apart."""
    kinds = [
        each
        for each in vars(torch.optim).values()
        if isinstance(each, type) and issubclass(each, torch.optim.Optimizer)
    ]
    names = {name for kind in kinds for name in inspect.signature(kind).parameters}
    return frozenset(names - LATER - {"defaults", "params"})


def read_parameter(
    entry: Entry,
    group: int,
    given: Sequence[Mapping[str, Any]],
    optimizer: torch.optim.Optimizer,
    *,
    is_partial: bool,
) -> StoredParameter:
    """The state of one parameter."""
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
                raise CheckpointError(
                    f"state {key!r} of parameter {entry.name!r} has shape"
                    f" {tuple(values[key].shape)}, but the parameter {entry.shape}; is it of"
                    " another model?",
                    parameter=entry.name,
                )
        pieces.append(StoredPiece(begin, end, described))
    pieces.sort(key=lambda piece: piece.begin)
    return StoredParameter(
        entry.name, entry.shape, None, dims, tuple(pieces), group, is_partial or not pieces
    )


def describe_named(key: str, value: Any, entry: Entry) -> StoredValue:
    """What a value is."""
    if not isinstance(value, CutTensor):
        return describe_value(key, value, entry.shape, tuple(range(len(entry.shape))))
    if tuple(value.shape) == entry.shape:
        return StoredValue("cut", lambda: value.local)
    return StoredValue("whole", value.whole)
