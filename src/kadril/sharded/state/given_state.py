"""State that a user gives to be loaded, in any of the forms that there are.

plain     numbered, of a torch optimizer over whole parameters --plain_state.py--> named
named     of this rank, of all ranks in a list, or whole --named_state.py--> StoredState
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.state.named_state import read_named
from kadril.sharded.state.own_state import part_of
from kadril.sharded.state.plain_state import name_parameters
from kadril.sharded.state.stored_state import StoredState

__all__ = ["read_state"]

logger = logging.getLogger("kadril")


def read_state(state_dict: Any, shards: Shards, optimizer: torch.optim.Optimizer) -> StoredState:
    """Read a plain state_dict, that of one rank, or a list of those of all ranks.

    Raises:
        CheckpointError: it is something else, or of another model or optimizer.
    """
    entries = shards.parameters.entries()
    is_list = isinstance(state_dict, list | tuple)
    given = list(state_dict) if is_list else [state_dict]
    if not given or not all(is_state_dict(each) for each in given):
        raise CheckpointError(
            "this is no state_dict of a torch optimizer, and none of kadril.sharded"
        )
    if not is_list and not is_named(given[0]):
        in_order = [entries[place] for place in shards.parameters.given]
        named = read_named([name_parameters(given[0], in_order)], entries, optimizer, None)
        return dataclasses.replace(named, keeps_dtypes=False)
    stored = read_named(given, entries, optimizer, None if is_list else part_of(shards))
    if not any(parameter.pieces for parameter in stored.parameters):
        logger.info("the state_dict has no state of any parameter, as before the first step")
    return stored


def is_state_dict(given: Any) -> bool:
    """Whether something has the form of an optimizer's state."""
    return isinstance(given, Mapping) and "state" in given and "param_groups" in given


def is_named(state_dict: Mapping[str, Any]) -> bool:
    """Whether parameters are called by name, rather than numbered."""
    return any(
        isinstance(each, str) for group in state_dict["param_groups"] for each in group["params"]
    )
