"""Agreement on the input of a layer with split parameters, whose dtype must be theirs.

Torch refuses an input of another dtype only where there is a weight, between two collectives; the
other workers would wait. So dtypes of parameters are sent together with the structure.
"""

from __future__ import annotations

import struct

import torch

from kadril.nn.autocast import autocast_dtype, dtype_under
from kadril.ops.structure import DTYPE_CODES, DTYPES, Structure, description_of, structure_of
from kadril.partition import Partition

__all__ = ["agree_with_parameters"]

CODES = struct.Struct("<3q")  # of autocast, of the weight, of the bias
NO_CODE = -1


def agree_with_parameters(
    everyone: Partition,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    what: str,
    owners: Partition,
) -> Structure:
    """Agree on the structure of the input, and check the dtypes; collective over `everyone`.

    Args:
        everyone: the workers that take part.
        x: what this one holds of the input.
        weight: its block of the weight; None where it has none.
        bias: its block of the bias; None where it has none.
        what: name of the layer in errors.
        owners: those that hold the input.

    Raises:
        TypeError: parameters have another dtype than the input, after the cast of autocast; on all
            workers.
        MismatchError, UnsupportedError, ValueError: see `ops.structure.agree`.
    """
    device = x.device if weight is None else weight.device
    codes = CODES.pack(
        code_of(autocast_dtype(device.type)),
        code_of(None if weight is None else weight.dtype),
        code_of(None if bias is None else bias.dtype),
    )
    given = everyone.transport.allgather_bytes(description_of(x) + codes, name=what)
    descriptions = b"".join(each[: -CODES.size] for each in given)
    structure = structure_of(descriptions, everyone.ranks, owners.ranks, owners.shape, what)
    for rank, each in zip(everyone.ranks, given, strict=True):
        check_dtypes(structure.dtype, each[-CODES.size :], rank, what)
    return structure


def check_dtypes(dtype: torch.dtype, codes: bytes, rank: int, what: str) -> None:
    """Refuse an input of another dtype than the parameters of one worker."""
    autocast, *parameters = (
        None if code == NO_CODE else DTYPES[code] for code in CODES.unpack(codes)
    )
    for name, found in zip(("weight", "bias"), parameters, strict=True):
        if found is not None and dtype_under(autocast, found) != dtype_under(autocast, dtype):
            raise TypeError(
                f"{what}: the input is {dtype}, and the {name} on rank {rank} is {found}; convert"
                f" one of them, for example by layer.to({dtype})"
            )


def code_of(dtype: torch.dtype | None) -> int:
    """Return the number of a dtype; that of none for one that transports do not move."""
    return NO_CODE if dtype is None else DTYPE_CODES.get(dtype, NO_CODE)
