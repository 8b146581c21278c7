"""Broadcast and sum-reduce between partitions: each other's adjoint.

Partitions are matched by their shapes as NumPy does (`partition/pairing.py`): a worker along an
axis of size 1 stands for all workers along that axis of the other partition.

    P_x = 1 x 2   --broadcast-->   P_y = 3 x 2         y_s = x_r           for s that r stands for
                  <--sum-reduce--                      x_r = sum_s y_s
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from kadril.ops.calling import anchor_for, apply
from kadril.ops.structure import DTYPES, MAX_DIMS
from kadril.ops.zero_volume import zero_volume_tensor
from kadril.partition import Partition

__all__ = ["Broadcaster", "SumReducer", "broadcast", "sum_reduce"]


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
        ValueError: the shapes of the partitions do not fit.
    """
    return Broadcaster(P_x, P_y, transpose_src, transpose_dest, preserve_batch)(x)


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

    Here `P_x` is the larger partition, and `P_y` the smaller one.
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
    """What broadcasts and sum-reduces have in common.

    Args:
        few: the smaller partition.
        lots: the larger partition.
        transpose_few: whether its axes are taken in reverse order.
        transpose_lots: the same, for the larger one.
        preserve_batch: about zero-volume results.
        what: for errors.
    """

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
        one, many = few.create_broadcast_partition_to(lots, transpose_few, transpose_lots)
        # Groups are known by their first rank, the one, and served in the order of those.
        is_one_first = not many.active or (one.active and one.ranks[0] <= many.ranks[0])
        self.places = Places(one, many, is_one_first)

    def nothing(self, like: torch.Tensor) -> torch.Tensor:
        """What a rank gets that has no part in the result."""
        batch = like.shape[0] if self.preserve_batch and like.dim() else None
        return zero_volume_tensor(batch, dtype=like.dtype, device=like.device)

    def give(self, x: torch.Tensor | None, what: str) -> torch.Tensor | None:
        """From the one to the many: what this rank gets as one of them."""
        result = None
        for place in self.places.in_order():
            is_giver = place.rank == 0
            got = give_to_all(place, x if is_giver else None, what)
            if place is self.places.many or place == self.places.many:
                result = got.clone() if is_giver else got
        return result

    def add(self, x: torch.Tensor | None, what: str) -> torch.Tensor | None:
        """From the many to the one: what this rank gets as that."""
        result = None
        for place in self.places.in_order():
            is_one = place.rank == 0
            is_among_many = self.places.many.active and place == self.places.many
            got = add_up(place, x if is_among_many else None, what)
            if is_one:
                result = got
        return result


def describe(x: torch.Tensor | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A tensor in numbers; the first is -1 where there is none."""
    row = np.full(3 + MAX_DIMS, -1, dtype=np.int64)
    if x is not None:
        row[: 3 + x.dim()] = [x.dim(), DTYPES.index(x.dtype), int(x.requires_grad), *x.shape]
    return row


def empty_like(row: np.ndarray[Any, np.dtype[np.int64]]) -> torch.Tensor:
    """Memory for a tensor that was described."""
    num_dims, dtype = int(row[0]), DTYPES[int(row[1])]
    return torch.empty([int(length) for length in row[3 : 3 + num_dims]], dtype=dtype)


def give_to_all(place: Partition, x: torch.Tensor | None, what: str) -> torch.Tensor:
    """Rank 0's tensor, on all ranks of a group."""
    row = describe(x)
    place.transport.broadcast(row, 0, name=what)
    data = empty_like(row) if x is None else x.detach().contiguous()
    place.transport.broadcast(data, 0, name=what)
    return data


def add_up(place: Partition, x: torch.Tensor | None, what: str) -> torch.Tensor:
    """The sum of the tensors of a group, on rank 0; some may have none."""
    row = describe(x)
    rows = np.empty((place.size, row.size), dtype=np.int64)
    place.transport.allgatherv(row, rows, [row.size] * place.size, name=what)
    known = next(each for each in rows if each[0] >= 0)
    data = torch.zeros_like(empty_like(known)) if x is None else x.detach().contiguous()
    out = torch.empty_like(data)
    place.transport.reduce(data, 0, out=out, name=what)
    return out


class Broadcaster(Between):
    """A broadcast that is done again and again; making one is collective over the world."""

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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Broadcast."""
        if not (self.few.active or self.lots.active) or self.few == self.lots:
            return x.clone()
        return apply(BroadcastFunction, x, anchor_for(True), self)


class SumReducer(Between):
    """A sum-reduce that is done again and again; making one is collective over the world."""

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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Sum-reduce."""
        if not (self.few.active or self.lots.active) or self.few == self.lots:
            return x.clone()
        return apply(SumReduceFunction, x, anchor_for(True), self)


def as_result(got: torch.Tensor | None, x: torch.Tensor, between: Between) -> torch.Tensor:
    """What a rank returns: what it got, or nothing."""
    return between.nothing(x) if got is None else got


class BroadcastFunction(torch.autograd.Function):
    """From the one to the many, and back as a sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _: torch.Tensor, between: Between) -> torch.Tensor:
        """y_s = x_r."""
        ctx.between, ctx.shape, ctx.dtype = between, x.shape, x.dtype
        got = between.give(x if between.few.active else None, between.what)
        return as_result(got, x, between)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """x*_r = sum_s y*_s."""
        between = ctx.between
        got = between.add(grads[0] if between.lots.active else None, f"adjoint of {between.what}")
        x = torch.zeros(ctx.shape, dtype=ctx.dtype) if got is None else got
        return x, None, None


class SumReduceFunction(torch.autograd.Function):
    """From the many to the one, and back as copies."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _: torch.Tensor, between: Between) -> torch.Tensor:
        """y_r = sum_s x_s."""
        ctx.between, ctx.shape, ctx.dtype = between, x.shape, x.dtype
        got = between.add(x if between.lots.active else None, between.what)
        return as_result(got, x, between)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """x*_s = y*_r."""
        between = ctx.between
        got = between.give(grads[0] if between.few.active else None, f"adjoint of {between.what}")
        x = torch.zeros(ctx.shape, dtype=ctx.dtype) if got is None else got
        return x, None, None
