"""The structure of a distributed tensor: what each worker of a partition holds of it.

It is agreed on in one small all-gather at every call, so that what follows from it (who sends what
to whom) is decided alike on all workers, also when the block of only one of them has changed.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from kadril.errors import MismatchError, UnsupportedError
from kadril.partition import Group, Interval, Partition, intervals_of
from kadril.partition.pairing import index_of, text
from kadril.transport.tensor import TORCH_DTYPES

__all__ = [
    "DTYPES",
    "DTYPE_CODES",
    "PlanCache",
    "Structure",
    "agree",
    "agree_in_line",
    "any_requires_grad",
    "description_of",
    "is_differentiable",
    "shared_plans",
    "structure_of",
]

MAX_DIMS = 12
HEADER = 4  # numbers before the shape
DESCRIPTION = struct.Struct(f"<{HEADER + MAX_DIMS}q")
NO_DIMS = (0,) * MAX_DIMS
DTYPES: list[torch.dtype] = list(TORCH_DTYPES)
DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}

Plan = TypeVar("Plan")


class Structure(NamedTuple):
    """Shapes and dtype of the blocks that the workers hold, in their order.

    Attributes:
        partition_shape: workers along each axis.
        shapes: of each worker's block.
        dtype: dtype of all blocks.
        requires_grad: whether any of them does, and graphs are recorded.
        ranks: of the workers, in the world.
    """

    partition_shape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    requires_grad: bool
    ranks: tuple[int, ...]

    def blocks(self, what: str) -> list[list[Interval]]:
        """Return, for each dim, the interval of the global tensor at each position along its axis.

        Raises:
            ValueError: the partition does not have as many axes as the tensor has dims.
            MismatchError: the blocks do not make up a tensor.
        """
        return list(blocks_of(self, what))


@functools.lru_cache(maxsize=1024)
def blocks_of(structure: Structure, what: str) -> tuple[list[Interval], ...]:
    """Find `Structure.blocks`; every layer asks for the same ones several times in each call."""
    num_dims = len(structure.shapes[0])
    if len(structure.partition_shape) != num_dims:
        raise ValueError(
            f"{what}: a tensor of {num_dims} dims cannot lie on a partition of shape"
            f" {text(structure.partition_shape)}; give the partition one axis for each dim"
        )
    sizes = [[-1] * length for length in structure.partition_shape]
    for worker, shape in enumerate(structure.shapes):
        for dim, position in enumerate(index_of(worker, structure.partition_shape)):
            known = sizes[dim][position]
            if known not in (-1, shape[dim]):
                raise MismatchError(
                    f"{what}: blocks do not fit together: along dim {dim}, workers at position"
                    f" {position} of the axis have {known} and (rank {structure.ranks[worker]})"
                    f" {shape[dim]} elements; workers in line must have blocks of the same size"
                )
            sizes[dim][position] = shape[dim]
    return tuple(intervals_of(each) for each in sizes)


def agree(
    partition: Partition, x: torch.Tensor, what: str, owners: Partition | None = None
) -> Structure:
    """Agree on what the workers of a partition hold; collective over it.

    Args:
        partition: the workers that take part.
        x: what this one holds.
        what: name of the operation in errors.
        owners: those of them that hold the tensor; the others have a tensor without elements. All
            of them where None.

    Raises:
        MismatchError: they hold tensors of different dtypes or numbers of dims, or some of them
            record a graph and others do not; on all of them.
        UnsupportedError: a dtype that transports do not move; on all of them.
        ValueError: a tensor of too many dims, or one where there should be none; on all of them.
    """
    owners = partition if owners is None else owners
    descriptions = b"".join(partition.transport.allgather_bytes(description_of(x), name=what))
    return structure_of(descriptions, partition.ranks, owners.ranks, owners.shape, what)


def agree_in_line(group: Group, x: torch.Tensor, what: str) -> Structure:
    """Agree on what the workers of a group hold; see `agree`."""
    descriptions = b"".join(group.transport.allgather_bytes(description_of(x), name=what))
    return structure_of(descriptions, group.ranks, group.ranks, (len(group.ranks),), what)


def any_requires_grad(x: torch.Tensor, group: Group, what: str) -> bool:
    """Whether the tensor of any rank of a group requires gradients; collective where it might.

    Raises:
        MismatchError: not all ranks record a graph, or not all have a tensor that may have
            gradients; on all of them.
    """
    if not torch.is_grad_enabled() or not is_differentiable(x.dtype):
        return False
    if group.transport.size == 1:
        return x.requires_grad
    wanted = b"\1" if x.requires_grad else b"\0"
    name = f"{what}, whether gradients are wanted"
    return b"\1" in group.transport.allgather_bytes(wanted, name=name)


class Description(NamedTuple):
    """Description of what one worker holds, and whether it records a graph."""

    num_dims: int
    dtype_code: int
    requires_grad: bool
    is_recording: bool
    shape: tuple[int, ...]

    @property
    def has_elements(self) -> bool:
        """Whether it holds anything."""
        return self.num_dims == 0 or math.prod(self.shape) > 0

    @property
    def words(self) -> str:
        """Dtype and shape, as people write them."""
        dtype = DTYPES[self.dtype_code] if self.dtype_code >= 0 else "another dtype"
        return f"{dtype} of shape {list(self.shape)}"


def description_of(x: torch.Tensor) -> bytes:
    """Describe what this worker holds. Nothing is refused yet, so that all raise the same error."""
    is_recording = torch.is_grad_enabled()
    shape = x.shape[:MAX_DIMS]
    return DESCRIPTION.pack(
        x.dim(),
        DTYPE_CODES.get(x.dtype, -1),
        x.requires_grad and is_recording,
        is_recording,
        *shape,
        *NO_DIMS[len(shape) :],
    )


@functools.lru_cache(maxsize=1024)
def structure_of(
    descriptions: bytes,
    ranks: tuple[int, ...],
    owners: tuple[int, ...],
    owners_shape: tuple[int, ...],
    what: str,
) -> Structure:
    """Return the structure that follows from what all workers hold; for errors see `agree`.

    Args:
        descriptions: of `description_of`, one after the other.
        ranks: ranks that gave them, in the same order.
        owners: those of them that hold the tensor, in the order of their partition.
        owners_shape: of that partition.
        what: name of the operation in errors.
    """
    found = np.frombuffer(descriptions, dtype=np.int64).reshape(len(ranks), -1).tolist()
    by_rank = {
        rank: Description(
            each[0], each[1], bool(each[2]), bool(each[3]), tuple(each[HEADER : HEADER + each[0]])
        )
        for rank, each in zip(ranks, found, strict=True)
    }
    held = {rank: by_rank[rank] for rank in owners}
    for rank, each in by_rank.items():
        if rank not in held and each.has_elements:
            raise ValueError(
                f"{what}: rank {rank} holds a tensor of shape {list(each.shape)} and is not one of"
                f" ranks {list(owners)}, on which the tensor lies; give zero_volume_tensor()"
            )
    dtype = check_alike(held, by_rank, what)
    wants_gradients = any(each.requires_grad for each in by_rank.values())
    requires_grad = wants_gradients and is_differentiable(dtype)
    shapes = tuple(each.shape for each in held.values())
    return Structure(owners_shape, shapes, dtype, requires_grad, owners)


def check_alike(
    held: Mapping[int, Description], everyone: Mapping[int, Description], what: str
) -> torch.dtype:
    """Return the dtype of all tensors; raise where they cannot be parts of one.

    Args:
        held: by those who hold a part, by world rank.
        everyone: those, and the others who take part.
        what: name of the operation in errors.
    """
    first = next(iter(held.values()))
    if any(each[:2] != first[:2] for each in held.values()):
        calls = {rank: each.words for rank, each in held.items()}
        lines = "".join(f"\n  rank {rank}: {call}" for rank, call in calls.items())
        raise MismatchError(
            f"{what}: workers hold tensors of different dtypes or numbers of dims:{lines}", calls
        )
    if first.dtype_code < 0:
        raise UnsupportedError(
            f"{what}: the tensor has a dtype that transports do not move; use one of"
            f" {', '.join(str(dtype) for dtype in DTYPES)}"
        )
    if first.num_dims > MAX_DIMS:
        raise ValueError(f"{what}: a tensor may have {MAX_DIMS} dims, got {first.num_dims}")
    recording = [rank for rank, each in everyone.items() if each.is_recording]
    if recording and len(recording) < len(everyone):
        raise MismatchError(
            f"{what}: ranks {recording} record a graph, and the others do not (torch.no_grad), so"
            " they would miss each other in the backward pass; use the same mode on all ranks"
        )
    return DTYPES[first.dtype_code]


def is_differentiable(dtype: torch.dtype) -> bool:
    """Whether tensors of a dtype can have gradients."""
    return dtype.is_floating_point or dtype.is_complex


@functools.lru_cache(maxsize=256)
def shared_plans(*settings: Hashable) -> PlanCache:
    """Return the plans that all layers of the same settings share: a network has many of them.

    Args:
        settings: all that plans follow from besides the structure; plain values, since they are
            kept for longer than the layers.
    """
    return PlanCache()


class PlanCache:
    """A cache of the last few plans, by what they follow from."""

    def __init__(self, capacity: int = 16) -> None:
        self._capacity = capacity
        self._plans: dict[Hashable, Any] = {}

    def __deepcopy__(self, _: dict[int, object]) -> PlanCache:
        """Return an empty cache: plans are no state, and belong to this process."""
        return PlanCache(self._capacity)

    def __reduce__(self) -> tuple[type[PlanCache], tuple[int]]:
        return PlanCache, (self._capacity,)

    def find(self, key: Hashable) -> Any:
        """Return the plan for a key; None where there is none."""
        return self._plans.get(key)

    def put(self, key: Hashable, plan: object) -> None:
        """Keep a plan, instead of the oldest one where there are too many."""
        self._plans.pop(key, None)
        while len(self._plans) >= self._capacity:
            del self._plans[next(iter(self._plans))]
        self._plans[key] = plan

    def get(self, key: Hashable, make: Callable[[], Plan]) -> Plan:
        """Return the plan for a key; make it where there is none."""
        plan: Plan | None = self._plans.get(key)
        if plan is None:
            plan = make()
            self.put(key, plan)
        return plan
