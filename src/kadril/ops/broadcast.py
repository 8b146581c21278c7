"""Broadcast and sum-reduce between partitions: each other's adjoint.

Partitions are matched by their shapes as NumPy does (`partition/pairing.py`): a worker along an
axis of size 1 stands for all workers along that axis of the other partition.

    P_x = 1 x 2   --broadcast-->   P_y = 3 x 2         y_s = x_r           for s that r stands for
                  <--sum-reduce--                      x_r = sum_s y_s
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch

from kadril.errors import MismatchError
from kadril.ops.calling import uncompiled
from kadril.ops.linear_operator import apply_operator
from kadril.ops.repartition import union_of
from kadril.ops.structure import Structure, agree
from kadril.ops.zero_volume import nothing_of, zero_volume_tensor
from kadril.partition import Partition
from kadril.partition.pairing import pair

__all__ = ["Broadcaster", "SumReducer", "broadcast", "sum_reduce"]


@uncompiled
def broadcast(
    x: torch.Tensor,
    P_x: Partition,
    P_y: Partition,
    *,
    transpose_src: bool = False,
    transpose_dest: bool = False,
    preserve_batch: bool = True,
) -> torch.Tensor:
    """Copy blocks to all workers that theirs stands for; collective over both partitions.

    Groups are made at the first use of this pair: collective over the world.

    Args:
        x: block on `P_x`; without elements on other ranks.
        P_x: the smaller partition.
        P_y: the larger partition.
        transpose_src: whether the axes of `P_x` are taken in reverse order.
        transpose_dest: the same, for `P_y`.
        preserve_batch: whether a rank that is only in `P_x` gets a zero-volume tensor with the
            batch size of its block, or with none.

    Raises:
        ValueError: the shapes of the partitions do not fit, or a rank that is not in `P_x` has
            elements; on all ranks of both.
        MismatchError: blocks differ in dtype or number of dims; on all ranks of both.
    """
    return Broadcaster(P_x, P_y, transpose_src, transpose_dest, preserve_batch)(x)


@uncompiled
def sum_reduce(
    x: torch.Tensor,
    P_x: Partition,
    P_y: Partition,
    *,
    transpose_src: bool = False,
    transpose_dest: bool = False,
    preserve_batch: bool = True,
) -> torch.Tensor:
    """Add up the blocks of all workers that one stands for; the arguments are those of `broadcast`.

    Here `P_x` is the larger partition, and `P_y` the smaller one. Raises `MismatchError` also where
    blocks that are to be added up have different shapes.
    """
    return SumReducer(P_x, P_y, transpose_src, transpose_dest, preserve_batch)(x)


class Places(NamedTuple):
    """The one or two groups that this rank is in: as the one, and as one of the many.

    Attributes:
        one: where it is the one; inactive where it is none.
        many: where it is one of the many.
        is_one_first: which comes first, so that all ranks get through.
    """

    one: Partition
    many: Partition
    is_one_first: bool

    def in_order(self) -> list[Partition]:
        """The different groups of this rank, in the order in which all ranks serve them."""
        places = [self.one, self.many] if self.is_one_first else [self.many, self.one]
        active = [place for place in places if place.active]
        return active[:1] if len(active) == 2 and active[0] == active[1] else active


class Between:
    """Base of broadcasts and sum-reduces: the workers of two partitions that belong together.

    Args:
        few: the smaller partition.
        lots: the larger partition.
        transpose_few: whether its axes are taken in reverse order.
        transpose_lots: the same, for the larger one.
        preserve_batch: about zero-volume results.
        what: for errors.

    Attributes:
        adds: whether blocks go from the larger partition to the smaller one, and are added up.
    """

    adds: ClassVar[bool]

    def __init__(
        self,
        few: Partition,
        lots: Partition,
        transpose_few: bool,
        transpose_lots: bool,
        preserve_batch: bool,
        what: str,
    ) -> None:
        self.few = few
        self.lots = lots
        self.preserve_batch = preserve_batch
        self.what = what
        self.is_identity = few == lots and transpose_few == transpose_lots
        self.pairs = pair(few.shape, lots.shape, transpose_few, transpose_lots)
        one, many = few.create_broadcast_partition_to(lots, transpose_few, transpose_lots)
        # Groups are known by their first rank, the one, and served in the order of those.
        is_one_first = not many.active or (one.active and one.ranks[0] <= many.ranks[0])
        self.places = Places(one, many, is_one_first)
        self.union = union_of(few, lots)

    @uncompiled
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Copy, or add up; collective over both partitions."""
        if not self.union.active:
            return nothing_of(x, self.union, self.what)
        if self.is_identity:
            return x.clone()
        structure = agree(self.union, x, self.what, owners=self.lots if self.adds else self.few)
        shape = self.result_shape(structure)
        operator = Passing(self, not self.adds, shape, tuple(x.shape), structure.dtype)
        return apply_operator(operator, x, requires_grad=structure.requires_grad)

    def result_shape(self, structure: Structure) -> tuple[int, ...]:
        """Return the shape of what this rank gets."""
        raise NotImplementedError

    def nothing(self, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return what a rank gets that has no part in the result."""
        batch = like.shape[0] if self.preserve_batch and like.dim() else None
        return zero_volume_tensor(batch, dtype=dtype, device=like.device)

    def give(self, x: torch.Tensor | None, room: torch.Tensor, what: str) -> torch.Tensor | None:
        """Copy from the one to the many; return what this rank gets as one of them.

        Args:
            x: what it gives, where it is the one.
            room: for what it gets, where it is one of the many.
            what: for errors.
        """
        result = None
        for place in self.places.in_order():
            data = room if x is None or place.rank else x.contiguous()
            place.transport.broadcast(data, 0, name=what)
            if place == self.places.many:
                result = data.clone() if place.rank == 0 else data
        return result

    def add(self, x: torch.Tensor | None, room: torch.Tensor, what: str) -> torch.Tensor | None:
        """Add up from the many to the one; return what this rank gets as that.

        Args:
            x: what it adds, where it is one of the many.
            room: for the sum, where it is the one.
            what: for errors.
        """
        result = None
        for place in self.places.in_order():
            adds = x is not None and place == self.places.many
            data = x.contiguous() if x is not None and adds else torch.zeros_like(room)
            if place.rank == 0:
                result = room
                place.transport.reduce(data, 0, out=room, name=what)
            else:
                place.transport.reduce(data, 0, name=what)
        return result


class Broadcaster(Between):
    """A broadcast that is done again and again; making one is collective over the world."""

    adds = False

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
        what: str = "Broadcast",
    ) -> None:
        super().__init__(P_x, P_y, transpose_src, transpose_dest, preserve_batch, what)

    def result_shape(self, structure: Structure) -> tuple[int, ...]:
        """Return the shape of the one that stands for this rank."""
        many = self.places.many
        return structure.shapes[self.few.ranks.index(many.ranks[0])] if many.active else (0,)


class SumReducer(Between):
    """A sum-reduce that is done again and again; making one is collective over the world."""

    adds = True

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
        what: str = "SumReduce",
    ) -> None:
        super().__init__(P_y, P_x, transpose_dest, transpose_src, preserve_batch, what)

    def result_shape(self, structure: Structure) -> tuple[int, ...]:
        """Return the shape of the blocks that this rank stands for.

        Raises:
            MismatchError: blocks that are to be added up have different shapes; on all ranks.
        """
        shape: tuple[int, ...] = (0,)
        for one, many in self.pairs:
            shapes = {structure.shapes[worker]: self.lots.ranks[worker] for worker in many}
            if len(shapes) > 1:
                blocks = ", ".join(f"{list(s)} on rank {rank}" for s, rank in shapes.items())
                raise MismatchError(
                    f"{self.what}: blocks that are to be added up have different shapes: {blocks}"
                )
            if self.few.rank == one:
                (shape,) = shapes
        return shape


class Passing(NamedTuple):
    """Operator between the one and the many: copies in one direction, sums in the other.

    Attributes:
        between: who.
        gives: whether it is forward that copies, and its adjoint that adds; or the other way round.
        shape: of what this rank gets.
        given_shape: of what it gives.
        dtype: of both.
    """

    between: Between
    gives: bool
    shape: tuple[int, ...]
    given_shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def what(self) -> str:
        """Name of the operator, for errors."""
        return self.between.what

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y_s = x_r, or y_r = sum_s x_s."""
        room = x.new_empty(self.shape, dtype=self.dtype)
        got = self._pass(x, room, self.gives, what)
        return self.between.nothing(x, self.dtype) if got is None else got

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor | None:
        """x*_r = sum_s y*_s, or x*_s = y*_r."""
        room = y.new_empty(self.given_shape)
        return self._pass(y, room, not self.gives, what)

    def _pass(
        self, data: torch.Tensor, room: torch.Tensor, gives: bool, what: str
    ) -> torch.Tensor | None:
        between = self.between
        if gives:
            return between.give(data if between.few.active else None, room, what)
        return between.add(data if between.lots.active else None, room, what)
