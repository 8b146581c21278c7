"""Adapters between DistDL's layers and the layers of `kadril.nn` that they stand on.

|                            | DistDL                           | kadril.nn                  |
|----------------------------|----------------------------------|----------------------------|
| partitions of one layer    | any, of one communicator         | of one group               |
| worker without a block     | hands in whatever it has         | hands in nothing           |
| parameters                 | on one worker, elsewhere nothing | on each, the same          |
| settings                   | numbers, sequences, numpy arrays | numbers and sequences      |

For partitions see `backends/mpi/common_group.py`, for parameters `owned_parameters.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from kadril.nn import box_layer
from kadril.ops.calling import uncompiled
from kadril.partition import Partition

from ..backends.mpi.partition import MPIPartition

__all__ = [
    "Stateless",
    "as_zero_volume",
    "call_where_active",
    "partition_beneath",
    "per_dim",
    "stateless",
]

Stateless: TypeAlias = Callable[[Mapping[str, torch.Tensor], torch.Tensor], torch.Tensor]


def partition_beneath(P_x: MPIPartition) -> Partition | None:
    """Return the partition of `kadril.partition` beneath one of DistDL's.

    It is inactive where that is, and None where that comes from no communicator.
    """
    return P_x._core


def call_where_active(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the result of a layer of `kadril.nn`; a copy of the input on other workers.

    Args:
        layer: has the partition `P_x`; None on workers that know no such partition.
        x: this worker's block.
    """
    if layer is None or not layer.P_x.active:
        return x.clone()
    result: torch.Tensor = layer(x)
    return result


def as_zero_volume(x: torch.Tensor) -> torch.Tensor:
    """Return a zero-volume tensor with the batch size of another, in the graph of that.

    DistDL does not look at the tensors of workers that are not in the partition, and programs hand
    in whatever they have there.
    """
    if x.numel() == 0:
        return x
    return x.reshape(x.shape[0] if x.dim() else 1, -1)[:, :0]


def per_dim(value: int | Sequence[int], num_dims: int, name: str) -> tuple[int, ...]:
    """Return a setting for each dim, given as one number for all, a sequence or an array.

    Raises:
        ValueError: a sequence of another length, or numbers that are not whole.
    """
    given = torch.as_tensor(value)
    whole = given.to(torch.int64)
    if not torch.equal(given, whole.to(given.dtype)):
        raise ValueError(f"{name} needs whole numbers, got {value}")
    return box_layer.per_dim(whole.tolist(), num_dims, name, "distdl.nn")


def stateless(layer: torch.nn.Module) -> Stateless:
    """Return a layer as a function of its parameters and its input.

    The layer's own parameters are not used, and may be on the meta device. Since a function is no
    submodule, they are not found among those of the layer that calls it.
    """

    @uncompiled
    def call(parameters: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(layer, dict(parameters), (x,))
        return result

    return call
