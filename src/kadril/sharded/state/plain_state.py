"""State of a plain torch optimizer, whose parameters are numbered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kadril.errors import CheckpointError
from kadril.sharded.ownership.ownership_plan import Entry
from kadril.sharded.state.stored_state import unknown_parameter

__all__ = ["name_parameters"]


def name_parameters(state_dict: Mapping[str, Any], entries: Sequence[Entry]) -> dict[str, Any]:
    """Return a plain state_dict with names in place of the numbers of parameters.

    Args:
        state_dict: state_dict of a torch optimizer over whole parameters.
        entries: the parameters that it is for, in the order in which they were given.

    Raises:
        CheckpointError: it has another number of parameters, or other names.
    """
    groups = state_dict["param_groups"]
    numbers = [number for group in groups for number in group["params"]]
    if len(numbers) != len(entries):
        raise CheckpointError(
            f"the state has {len(numbers)} parameters, the trainer has {len(entries)}; is it of"
            " another model?"
        )
    names = dict(zip(numbers, (entry.name for entry in in_order_of(groups, entries)), strict=True))
    state = state_dict["state"]
    return {
        "state": {name: state[number] for number, name in names.items() if number in state},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"]]} for group in groups
        ],
    }


def in_order_of(groups: Sequence[Mapping[str, Any]], entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return parameters in the order of a plain state_dict: by name, where it has names.

    Raises:
        CheckpointError: some of its names are known, and some are not.
    """
    known = {entry.name: entry for entry in entries}
    names = [name for group in groups for name in group.get("param_names") or ()]
    found = [name for name in names if name in known]
    if not found:
        return entries
    if len(set(found)) != len(entries):
        unknown = sorted(set(names) - known.keys()) or sorted(known.keys() - set(names))
        raise unknown_parameter(unknown[0], list(known))
    return [known[name] for name in names]
