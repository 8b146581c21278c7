"""All that this rank holds of the parameters: buckets, and the pieces that it owns."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator

import torch

from kadril.errors import UnsupportedError
from kadril.sharded.ownership.agreement import check_same
from kadril.sharded.ownership.bucket import Bucket, OwnPiece
from kadril.sharded.ownership.ownership_plan import Piece, make_plan
from kadril.sharded.ownership.parameter_list import ParameterList
from kadril.sharded.ownership.shared_memory import share_block
from kadril.transport.base import Transport
from kadril.transport.small import allgather_bytes
from kadril.world.heap import trim_heap

__all__ = ["Shards"]


class Shards:
    """Parameters in buckets, cut by a plan.

    Args:
        transport: of the ranks that share the parameters; nobody else uses it.
        rule: of the plan.
        shares: put parameters in memory that all ranks of the host see, where there is such.

    Attributes:
        parameters: all of them.
        buckets: of all plans.
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

    def add(self, parameters: ParameterList, options: list[str]) -> list[Bucket]:
        """Take in the parameters of a list beyond those there are; collective.

        All ranks get the values of rank 0.

        Args:
            parameters: begins with those there are.
            options: further lines that have to be the same on all ranks.

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
        """Number parameters as they were given, if that is alike on all ranks; collective.

        Dicts are taken in the order of their names, and may be in any other.
        """
        digest = zlib.crc32(repr(parameters.given).encode()).to_bytes(4, "little")
        if len(set(allgather_bytes(self.transport, digest, "order"))) > 1:
            parameters.given = list(range(len(parameters.tensors)))

    def cut(self, buckets: list[Bucket]) -> None:
        """Make the pieces of this rank."""
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
        if self.transport.kind not in ("shm", "mpi"):
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
        """Give parameters their memory, with the values of rank 0; collective."""
        total = sum(bucket.num_bytes for bucket in buckets)
        block = share_block(self.transport, total) if self.shares else None
        with torch.no_grad():
            if block is None:
                self.move_privately(buckets)
                return
            begin = 0
            flats = []
            for bucket in buckets:
                end = begin + bucket.plan.num_elements * bucket.dtype.itemsize
                flats.append(block[begin:end].view(bucket.dtype))
                begin += bucket.num_bytes
            if self.transport.rank == 0:
                for bucket, flat in zip(buckets, flats, strict=True):
                    bucket.fill(flat)
            self.transport.barrier(name="parameters")
            for bucket, flat in zip(buckets, flats, strict=True):
                bucket.bind(flat)
                bucket.is_shared = True
            trim_heap()  # of the memory that parameters had

    def move_privately(self, buckets: list[Bucket]) -> None:
        """Flat memory of this rank for each bucket."""
        for bucket in buckets:
            flat = torch.zeros(bucket.plan.num_elements, dtype=bucket.dtype, device=bucket.device)
            bucket.fill(flat)
            self.transport.broadcast(flat, 0, name=f"parameters.{bucket.number}")
            bucket.bind(flat)

    def evacuate(self) -> None:
        """Give each rank parameters of its own again; local."""
        with torch.no_grad():
            for bucket in self.buckets:
                if bucket.is_shared:
                    bucket.bind(bucket.flat.clone())
                    bucket.is_shared = False

    def publish(self) -> None:
        """Let all ranks have what each has written to its pieces; collective."""
        # There may be both: what is added later may find no room any more, or some again.
        for bucket in self.buckets:
            if not bucket.is_shared:
                bucket.gather()
        if any(bucket.is_shared for bucket in self.buckets):
            self.transport.barrier(name="stepped")

    # ---- pieces ---------------------------------------------------------------------------------

    def own_piece(self, place: int) -> OwnPiece | None:
        """What this rank owns of a parameter."""
        return self._own.get(place)

    def own_pieces(self) -> Iterator[OwnPiece]:
        """What this rank owns, in the order of the parameters."""
        for place in sorted(self._own):
            yield self._own[place]

    def pieces_of(self, place: int) -> tuple[Piece, ...]:
        """The pieces of a parameter, on all ranks."""
        return self._pieces[place]

    def bucket_of(self, place: int) -> Bucket:
        """Where a parameter is."""
        return self._bucket_of[place]

    def owners(self) -> dict[str, int]:
        """The rank that holds most of each parameter, by name; the lowest of them."""
        return {
            name: max(pieces, key=lambda piece: (piece.end - piece.begin, -piece.rank)).rank
            for name, pieces in zip(self.parameters.names, self._pieces, strict=True)
        }
