"""A tensor of which this rank has a range of elements, as torch.distributed.checkpoint takes it.

    whole     | rank 0 | rank 1 | rank 2 |      has the shape of the CutTensor
    local              | 5 6 7 8|               flat, in the order of memory: what this rank has

Checkpoint planners ask a tensor for the boxes (state/boxes.py) that it has, and for the memory of
each. They ask in one way to write them and in another to read them. From then on a tensor to be
read into has memory of its own: a load that fails half way has not touched the optimizer.

`trainer.state_dict()` is made of these tensors, and users may pickle it: files name the function
`rebuild` by the path of this module, which therefore stays.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from kadril.errors import StateError, UnsupportedError
from kadril.sharded.ownership.memory_order import shaped
from kadril.sharded.state.boxes import Box, boxes_of

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem

__all__ = ["CutTensor", "Part", "coordinated"]

# Whether the plans of all ranks are combined, so that parts may be written.
is_coordinated = contextvars.ContextVar("is_coordinated", default=False)


@contextlib.contextmanager
def coordinated() -> Iterator[None]:
    """Allow parts to be written, within a `with` block that combines the plans of all ranks."""
    token = is_coordinated.set(True)
    try:
        yield
    finally:
        is_coordinated.reset(token)


class Part(NamedTuple):
    """Part of all state that a tensor belongs to: that of one rank, under one rule."""

    rank: int
    num_ranks: int
    rule: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.num_ranks} with rule {self.rule!r}"


class CutTensor(torch.Tensor):
    """Elements [begin, end) of a tensor, in the order of its memory.

    It can be saved, loaded and copied; compute with `local`.

    Args:
        local: the elements, flat.
        shape: shape of the whole tensor.
        dims: dims of the whole tensor in the order of memory, the slowest first.
        begin: first element.
        part: the part that the elements belong to.

    Attributes:
        local: the elements, flat.
        dims: as given.
        begin: as given.
        part: as given.
    """

    local: torch.Tensor
    dims: tuple[int, ...]
    begin: int
    part: Part

    @staticmethod
    def __new__(
        cls: type[CutTensor],
        local: torch.Tensor,
        shape: Sequence[int],
        dims: Sequence[int],
        begin: int,
        part: Part,
    ) -> CutTensor:
        """Make a tensor that has a shape, and no memory but `local`."""
        made: CutTensor = torch.Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=local.dtype, device=local.device
        )
        made.local = local.detach()
        made.dims = tuple(dims)
        made.begin = begin
        made.part = part
        return made

    def __init__(
        self, local: torch.Tensor, shape: Sequence[int], dims: Sequence[int], begin: int, part: Part
    ) -> None:
        super().__init__()

    @property
    def end(self) -> int:
        """One past the last element."""
        return self.begin + self.local.numel()

    @property
    def is_whole(self) -> bool:
        """Whether all elements are here."""
        return self.local.numel() == math.prod(self.shape)

    def beside(self, local: torch.Tensor) -> CutTensor:
        """Return a part of the same elements, with other values."""
        return CutTensor(local, self.shape, self.dims, self.begin, self.part)

    def whole(self) -> torch.Tensor:
        """Return the tensor itself, in its shape.

        Raises:
            StateError: some elements are on other ranks.
        """
        if not self.is_whole:
            raise StateError(f"only elements {self.begin} to {self.end} are here")
        return shaped(self.local, self.shape, self.dims)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"CutTensor(elements {self.begin} to {self.end} of {tuple(self.shape)}, {self.local!r})"
        )

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return rebuild, (self.local, tuple(self.shape), self.dims, self.begin, tuple(self.part))

    def __deepcopy__(self, memo: Any) -> CutTensor:
        return self.beside(self.local.clone())

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        """Copy, or make room for copies; anything else cannot be computed from a part."""
        (self, *others), keywords = arguments, keywords or {}
        aten = torch.ops.aten
        if function in (aten.detach.default, aten.clone.default):
            return self.beside(function(self.local))
        # Torch's `async_save` makes room for copies, to be written while training continues.
        is_room = function in (aten.zeros_like.default, aten.empty_like.default)
        if is_room or (function is aten.new_empty.default and tuple(others[0]) == self.shape):
            chosen = {key: keywords[key] for key in ("device", "dtype") if key in keywords}
            return self.beside(torch.zeros_like(self.local, **chosen))
        if function is aten.copy_.default and others[0].shape == self.shape:
            copy(others[0], self)
            return self
        raise UnsupportedError(
            f"{function}: this rank has a part of the tensor; compute with its attribute `local`,"
            " or bring all parts to one rank with consolidate()"
        )

    # ---- for planners of torch.distributed.checkpoint -------------------------------------------

    @property
    def boxes(self) -> list[Box]:
        """The elements that are here, as boxes."""
        return boxes_of(self.begin, self.end, self.shape, self.dims)

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        """Return what to write.

        Raises:
            StateError: other ranks have parts of this tensor, and plans are not combined.
        """
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import (
            TensorWriteData,
            WriteItem,
            WriteItemType,
        )

        if not (self.is_whole or is_coordinated.get() or dist.is_initialized()):
            raise StateError(
                f"{fqn}: only elements {self.begin} to {self.end} of {math.prod(self.shape)} are on"
                " this rank, and torch.distributed.checkpoint has no process group to collect the"
                " others by: each rank would overwrite the files of the others. Use"
                " kadril.sharded.dcp.save, or init_process_group() first"
            )
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties.create_from_tensor(self.local),
                    size=self.shape,
                ),
            )
            for chunk in map(chunk_of, self.boxes)
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Return what to read; from here on `local` is memory of its own."""
        self.local = self.local.clone()
        return [chunk_of(box) for box in self.boxes]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """Return the memory of one box."""
        for box in self.boxes:
            if index.offset is None or tuple(index.offset) == box.offsets:
                flat = self.local[box.begin : box.begin + box.num_elements]
                return shaped(flat, box.sizes, self.dims)
        raise StateError(f"{index.fqn}: there is nothing at {index.offset} on this rank")


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy between tensors of which this rank has the same elements.

    Raises:
        StateError: it has different elements of them.
    """
    cut = [each for each in (source, target) if isinstance(each, CutTensor)]
    if len(cut) == 2 and len({(each.begin, each.end, each.dims) for each in cut}) == 1:
        cut[1].local.copy_(cut[0].local)
        return
    whole = [each.whole() if isinstance(each, CutTensor) else each for each in (source, target)]
    whole[1].copy_(whole[0])


def chunk_of(box: Box) -> ChunkStorageMetadata:
    """Return a box as torch describes it."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))


def rebuild(
    local: torch.Tensor,
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    begin: int,
    part: tuple[int, int, str],
) -> CutTensor:
    """Make a tensor from what was pickled; pickles name this function."""
    return CutTensor(local, shape, dims, begin, Part(*part))


# For torch.load with weights_only=True, its default, which calls no other functions.
torch.serialization.add_safe_globals([rebuild])
