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


class RootedGroups(NamedTuple):
    """The one or two groups that this rank is in: a root, and all workers that it stands for.

    Attributes:
        as_root: the group that it is the root of; inactive where there is none.
        as_member: the group of the root that stands for it; inactive where there is none.
        is_root_first: which comes first, so that all ranks get through.
    """

    as_root: Partition
    as_member: Partition
    is_root_first: bool

    def in_order(self) -> list[Partition]:
        """Return the different groups of this rank, in the order in which all ranks serve them."""
        root, member = self.as_root, self.as_member
        groups = [root, member] if self.is_root_first else [member, root]
        active = [group for group in groups if group.active]
        return active[:1] if len(active) == 2 and active[0] == active[1] else active


class PairedPartitions:
    """Base of broadcasts and sum-reduces: two partitions, of which one stands for the other.

    Args:
        smaller: the partition whose workers are roots.
        larger: the partition whose workers are members of their groups.
        transpose_smaller: whether the axes of the smaller one are taken in reverse order.
        transpose_larger: the same, for the larger one.
        preserve_batch: about zero-volume results.
        what: name of the operation in errors.

    Attributes:
        adds: whether blocks go from the larger partition to the smaller one, and are added up.
        pairs: for each worker of the smaller partition, those of the larger one it stands for.
        groups: of this rank.
    """

    adds: ClassVar[bool]

    def __init__(
        self,
        smaller: Partition,
        larger: Partition,
        transpose_smaller: bool,
        transpose_larger: bool,
        preserve_batch: bool,
        what: str,
    ) -> None:
        self.smaller = smaller
        self.larger = larger
        self.preserve_batch = preserve_batch
        self.what = what
        self.is_identity = smaller == larger and transpose_smaller == transpose_larger
        self.pairs = pair(smaller.shape, larger.shape, transpose_smaller, transpose_larger)
        root, member = smaller.create_broadcast_partition_to(
            larger, transpose_smaller, transpose_larger
        )
        # Groups are known by their first rank, the root, and served in the order of those.
        is_root_first = not member.active or (root.active and root.ranks[0] <= member.ranks[0])
        self.groups = RootedGroups(root, member, is_root_first)
        self.union = union_of(smaller, larger)

    @uncompiled
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Copy, or add up; collective over both partitions."""
        if not self.union.active:
            return nothing_of(x, self.union, self.what)
        if self.is_identity:
            return x.clone()
        owners = self.larger if self.adds else self.smaller
        structure = agree(self.union, x, self.what, owners=owners)
        shape = self.result_shape(structure)
        operator = BroadcastOperator(self, not self.adds, shape, tuple(x.shape), structure.dtype)
        return apply_operator(operator, x, requires_grad=structure.requires_grad)

    def result_shape(self, structure: Structure) -> tuple[int, ...]:
        """Return the shape of what this rank gets."""
        raise NotImplementedError

    def nothing(self, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return what a rank gets that has no part in the result."""
        batch = like.shape[0] if self.preserve_batch and like.dim() else None
        return zero_volume_tensor(batch, dtype=dtype, device=like.device)

    def broadcast(self, x: torch.Tensor, out: torch.Tensor, what: str) -> torch.Tensor | None:
        """Copy from roots to members; return what this rank gets as a member.

        Args:
            x: what it gives, where it is a root.
            out: memory for what it gets, where it is a member.
            what: name of the operation in errors.
        """
        result = None
        for group in self.groups.in_order():
            is_root = self.smaller.active and group.rank == 0
            data = x.contiguous() if is_root else out
            group.transport.broadcast(data, 0, name=what)
            if group == self.groups.as_member:
                result = data.clone() if group.rank == 0 else data
        return result

    def sum_reduce(self, x: torch.Tensor, out: torch.Tensor, what: str) -> torch.Tensor | None:
        """Add up from members to roots; return what this rank gets as a root.

        Args:
            x: what it adds, where it is a member.
            out: memory for the sum, where it is a root.
            what: name of the operation in errors.
        """
        result = None
        for group in self.groups.in_order():
            is_member = self.larger.active and group == self.groups.as_member
            data = x.contiguous() if is_member else torch.zeros_like(out)
            if group.rank == 0:
                result = out
                group.transport.reduce(data, 0, out=out, name=what)
            else:
                group.transport.reduce(data, 0, name=what)
        return result


class Broadcaster(PairedPartitions):
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
        """Return the shape of the block of the root that stands for this rank."""
        group = self.groups.as_member
        if not group.active:
            return (0,)
        return structure.shapes[self.smaller.ranks.index(group.ranks[0])]


class SumReducer(PairedPartitions):
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
        for root, members in self.pairs:
            shapes = {structure.shapes[worker]: self.larger.ranks[worker] for worker in members}
            if len(shapes) > 1:
                blocks = ", ".join(f"{list(s)} on rank {rank}" for s, rank in shapes.items())
                raise MismatchError(
                    f"{self.what}: blocks that are to be added up have different shapes: {blocks}"
                )
            if self.smaller.rank == root:
                (shape,) = shapes
        return shape


class BroadcastOperator(NamedTuple):
    """Operator between roots and members: copies in one direction, sums in the other.

    Attributes:
        partitions: between which blocks move.
        broadcasts: whether it is forward that copies, and its adjoint that adds; or the other way
            round.
        shape: of what this rank gets.
        input_shape: of what it gives.
        dtype: of both.
    """

    partitions: PairedPartitions
    broadcasts: bool
    shape: tuple[int, ...]
    input_shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def what(self) -> str:
        """Name of the operator, for errors."""
        return self.partitions.what

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y_s = x_r, or y_r = sum_s x_s."""
        out = x.new_empty(self.shape, dtype=self.dtype)
        move = self.partitions.broadcast if self.broadcasts else self.partitions.sum_reduce
        got = move(x, out, what)
        return self.partitions.nothing(x, self.dtype) if got is None else got

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor | None:
        """x*_r = sum_s y*_s, or x*_s = y*_r."""
        out = y.new_empty(self.input_shape)
        move = self.partitions.sum_reduce if self.broadcasts else self.partitions.broadcast
        return move(y, out, what)
