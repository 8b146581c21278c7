"""The kinds of values in the state of an optimizer, and what checkpoints can hold of them.

    cut      an element for each element of the piece (momentum, variance): can be cut anywhere
    scalar   one number for the whole parameter (number of steps): every piece has it
    whole    anything else: belongs to the whole parameter

Shards of checkpoints store these words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.ownership.ownership_plan import Entry

__all__ = ["check_storable", "dtype_from", "kind_of", "wrong_shape"]

# Values that are one number for a parameter also where the parameter is one number.
SCALAR_KEYS = frozenset({"eta", "mu", "mu_product", "step"})


def kind_of(key: str, shape: Sequence[int], parameter_shape: Sequence[int]) -> str:
    """Return the kind of a tensor in the state of a parameter, or of a piece of one.

    Args:
        key: name of the value.
        shape: shape of the tensor.
        parameter_shape: shape of the parameter or piece.
    """
    if not shape and (parameter_shape or key in SCALAR_KEYS):
        return "scalar"
    return "cut" if tuple(shape) == tuple(parameter_shape) else "whole"


def wrong_shape(key: str, shape: Sequence[int], entry: Entry) -> CheckpointError:
    """Return the error for a value whose shape is not that of its parameter."""
    return CheckpointError(
        f"state {key!r} of parameter {entry.name!r} has shape {tuple(shape)}, but the parameter"
        f" {entry.shape}; is it of another model?",
        parameter=entry.name,
    )


def check_storable(value: Any, key: str, parameter: str) -> None:
    """Raise `CheckpointError` for a value that is not a tensor and that JSON cannot hold."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{key.removeprefix('state.')!r} in the state of parameter {parameter!r} cannot be"
            f" saved: {error}. Keep tensors there, and what JSON can hold",
            parameter=parameter,
        ) from error


def dtype_from(text: str) -> torch.dtype:
    """Return the dtype of a name such as "float32" or "torch.float32"."""
    dtype: torch.dtype = getattr(torch, text.removeprefix("torch."))
    return dtype
