"""The parameters of a trainer in buckets, and the pieces of them that this rank owns."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from typing import Any

import torch

from kadril.errors import UnsupportedError
from kadril.sharded.ownership.bucket import Bucket, OwnPiece
from kadril.sharded.ownership.ownership_plan import Piece, make_plan
from kadril.sharded.ownership.parameter_list import ParameterList
from kadril.sharded.ownership.shared_memory import share_block
from kadril.transport.agreement import check_same
from kadril.transport.base import Transport
from kadril.world.heap import trim_heap

__all__ = ["Shards"]


class Shards:
    """Parameters in buckets, cut by a plan.

    Args:
        transport: dedicated transport over the ranks that train the parameters.
        rule: partition rule.
        shares: whether to put parameters in memory that all ranks of the host see, if possible.

    Attributes:
        parameters: all parameters.
        buckets: all buckets, numbered in this order.
    """

    def __init__(self, transport: Transport, rule: str, *, shares: bool) -> None:
        self.transport = transport
        self.rule = rule
        self.shares = shares
        self.parameters = ParameterList()
        self.buckets: list[Bucket] = []
        self._pieces: list[tuple[Piece, ...]] = []  # of all ranks, by parameter
        self._own: dict[int, OwnPiece] = {}
        self._bucket_of: list[Bucket] = []
        self._host_group: Transport | None = None

    def add(self, parameters: ParameterList, options: list[str]) -> list[Bucket]:
        """Add the parameters of a list that are new; collective.

        All ranks get the values of rank 0.

        Args:
            parameters: the parameters that were added before, and new ones after them.
            options: further lines of text that have to be the same on all ranks.

        Raises:
            MismatchError: ranks have different parameters; nothing has changed.
        """
        first = len(self._pieces)
        entries = parameters.entries()
        self.check_devices(parameters.tensors[first:])
        plan = make_plan(entries[first:], self.transport.size, self.rule)
        check_same(self.transport, "kadril.sharded", [*options, *plan.lines])
        self.agree_on_order(parameters)
        made = [
            Bucket(number, bucket, first, entries, parameters.tensors, self.transport)
            for number, bucket in enumerate(plan.buckets, len(self.buckets))
        ]
        self.move(made)
        self.parameters = parameters
        self.buckets += made
        self._bucket_of += [made[pieces[0].bucket] for pieces in plan.pieces]
        self._pieces += [
            tuple(dataclasses.replace(piece, entry=piece.entry + first) for piece in pieces)
            for pieces in plan.pieces
        ]
        self.cut(made)
        return made

    def agree_on_order(self, parameters: ParameterList) -> None:
        """Number parameters in the given order, if that is the same on all ranks; collective.

        Otherwise in the order of this list: dicts are sorted by name, and ranks may have built
        theirs in different orders.
        """
        digest = zlib.crc32(repr(parameters.given).encode()).to_bytes(4, "little")
        if len(set(self.transport.allgather_bytes(digest, name="order"))) > 1:
            parameters.given = list(range(len(parameters.tensors)))

    def cut(self, buckets: list[Bucket]) -> None:
        """Make the pieces that this rank owns of some buckets."""
        for bucket in buckets:
            own = [
                piece
                for place in bucket.places
                for piece in self._pieces[place]
                if piece.rank == self.transport.rank
            ]
            bucket.cut(own, keeps_shape=self.rule != "flat")
            self._own.update({each.piece.entry: each for each in bucket.pieces})

    def check_devices(self, tensors: list[torch.Tensor]) -> None:
        """Raise `UnsupportedError` for memory that the transport cannot reach."""
        if self.transport.reaches_devices:
            return
        for tensor in tensors:
            if tensor.device.type != "cpu":
                raise UnsupportedError(
                    f"parameters on {tensor.device} cannot be sharded over transport"
                    f" {self.transport.kind}; use kadril.init(transport='c10d') with a backend of"
                    " that device"
                )

    # ---- memory ---------------------------------------------------------------------------------

    def move(self, buckets: list[Bucket]) -> None:
        """Move parameters to the memory of buckets, with the values of rank 0; collective."""
        total = sum(bucket.num_bytes for bucket in buckets)
        block = share_block(self.transport, total) if self.shares else None
        with torch.no_grad():
            if block is None:
                self.move_by_host(buckets, total)
                return
            flats = cut_block(block, buckets)
            if self.transport.rank == 0:
                for bucket, flat in zip(buckets, flats, strict=True):
                    bucket.fill(flat)
            self.transport.barrier(name="parameters")
            for bucket, flat in zip(buckets, flats, strict=True):
                bucket.bind(flat)
                bucket.is_shared = True
            trim_heap()  # the memory that parameters had before

    def move_by_host(self, buckets: list[Bucket], num_bytes: int) -> None:
        """Move parameters to flat memory of each host, or of each rank; collective.

        They get the values of rank 0. Where ranks of a host share the memory, a collective writes
        the same bytes to it several times at most: a rank writes others to it only in `step()`, for
        which all of them meet.
        """
        block = None
        if self.shares and self.transport.memory_host is not None:
            if self._host_group is None:
                self._host_group = self.transport.split(self.transport.memory_host)
            assert self._host_group is not None  # noqa: S101
            block = share_block(self._host_group, num_bytes)
        if block is None:
            self.move_privately(buckets)
            return
        for bucket, flat in zip(buckets, cut_block(block, buckets), strict=True):
            if self.transport.rank == 0:
                bucket.fill(flat)
            self.transport.broadcast(flat, 0, name=f"parameters.{bucket.number}")
            bucket.bind(flat)
            bucket.is_shared_on_host = True
        trim_heap()

    def move_privately(self, buckets: list[Bucket]) -> None:
        """Move parameters to flat memory of this rank, with the values of rank 0; collective."""
        for bucket in buckets:
            flat = torch.zeros(bucket.plan.num_elements, dtype=bucket.dtype, device=bucket.device)
            bucket.fill(flat)
            self.transport.broadcast(flat, 0, name=f"parameters.{bucket.number}")
            bucket.bind(flat)

    def meet_on_host(self) -> None:
        """Wait for the ranks that share memory with this one only: they are about to write to it.

        Collective among them; the others need not call it.
        """
        if any(bucket.is_shared_on_host for bucket in self.buckets):
            assert self._host_group is not None  # noqa: S101
            self._host_group.barrier(name="before the step")

    def close(self) -> None:
        """Let go of the group of this host; local."""
        if self._host_group is not None:
            self._host_group.close()

    def evacuate(self) -> None:
        """Move shared parameters to memory of this rank again; local."""
        with torch.no_grad():
            for bucket in self.buckets:
                if bucket.is_shared or bucket.is_shared_on_host:
                    bucket.bind(bucket.flat.clone())
                    bucket.is_shared = bucket.is_shared_on_host = False

    def publish(self) -> None:
        """Make what each rank has written to its pieces visible to all; collective."""
        # There may be both kinds: for parameters added later there may be no shared memory left.
        for bucket in self.buckets:
            if not bucket.is_shared:
                bucket.gather()
        if any(bucket.is_shared for bucket in self.buckets):
            self.transport.barrier(name="stepped")

    # ---- pieces ---------------------------------------------------------------------------------

    def own_piece(self, place: int) -> OwnPiece | None:
        """Return the piece of a parameter that this rank owns; None if it owns none."""
        return self._own.get(place)

    def own_pieces(self) -> Iterator[OwnPiece]:
        """Yield the pieces that this rank owns, in the order of the parameters."""
        for place in sorted(self._own):
            yield self._own[place]

    def pieces_of(self, place: int) -> tuple[Piece, ...]:
        """Return the pieces of a parameter on all ranks."""
        return self._pieces[place]

    def bucket_of(self, place: int) -> Bucket:
        """Return the bucket of a parameter."""
        return self._bucket_of[place]

    def owners(self) -> dict[str, int]:
        """Return the rank that owns most of each parameter, by name; of several the lowest."""
        return {
            name: max(pieces, key=lambda piece: (piece.num_elements, -piece.rank)).rank
            for name, pieces in zip(self.parameters.names, self._pieces, strict=True)
        }

    def ranges_of(self, rank: int) -> dict[str, tuple[int, int]]:
        """Return the elements that a rank owns: (begin, end) by name of parameter."""
        return {
            name: (piece.begin, piece.end)
            for name, pieces in zip(self.parameters.names, self._pieces, strict=True)
            for piece in pieces
            if piece.rank == rank
        }

    def own_groups(self, first: int = 0) -> list[dict[str, Any]]:
        """Return the parameter groups from a number on, with this rank's pieces as parameters."""
        groups: list[dict[str, Any]] = [
            {**options, "params": []} for options in self.parameters.options[first:]
        ]
        for own in self.own_pieces():
            number = self.parameters.groups[own.piece.entry] - first
            if number >= 0:
                groups[number]["params"].append(own.tensor)
        return groups


def cut_block(block: torch.Tensor, buckets: list[Bucket]) -> list[torch.Tensor]:
    """The flat memory of each bucket in a block of shared memory."""
    flats, begin = [], 0
    for bucket in buckets:
        end = begin + bucket.plan.num_elements * bucket.dtype.itemsize
        flats.append(block[begin:end].view(bucket.dtype))
        begin += bucket.num_bytes
    return flats
