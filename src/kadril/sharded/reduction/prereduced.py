"""Gradients that somebody else has reduced, and that are the same on all ranks, as after DDP."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

from kadril.errors import MismatchError
from kadril.sharded.ownership.bucket import Bucket
from kadril.sharded.ownership.gradient_memory import check_layout
from kadril.sharded.ownership.memory_order import flat_order
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.intent import Intent, exchange_intents

__all__ = ["PrereducedGradients"]


class HandedGradient:
    """A gradient of which a piece has its part; referenced, so that no other gets its address."""

    def __init__(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        self._whole = whole
        storages = [each.untyped_storage().data_ptr() for each in (whole, part)]
        self._version = None if storages[0] == storages[1] else whole._version  # of a copy

    @staticmethod
    def differs(handed: HandedGradient | None, gradient: torch.Tensor | None) -> bool:
        """Whether the piece has to be given this gradient in place of the one that it has."""
        if handed is None or gradient is None:
            return (handed is None) != (gradient is None)
        if gradient.data_ptr() != handed._whole.data_ptr():
            return True
        return handed._version is not None and gradient._version != handed._version


class PrereducedGradients:
    """Takes this rank's part of what the parameters have; see `Gradients`.

    Nothing is copied but gradients that are not contiguous.

    In the first round ranks compare what they have, so that nobody trains with gradients that
    were never reduced.
    """

    gives_away = has_given_away = False

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.agreed = 0
        self._handed: dict[int, HandedGradient] = {}  # by place of the parameter
        self._was_compared = False

    @property
    def has_news(self) -> bool:
        """Whether a gradient is another one than the pieces have. What is added to it they see."""
        gradients = [tensor.grad for tensor in self.shards.parameters.tensors]
        return any(
            HandedGradient.differs(self._handed.get(own.piece.entry), gradients[own.piece.entry])
            for own in self.shards.own_pieces()
        )

    def watch(self, buckets: Sequence[Bucket]) -> None:
        """Compare again, with these."""
        self._was_compared = False

    def settle(self, intent: Intent, digest: int = 0) -> None:
        """Agree on what there is; collective."""
        present = 0
        for bucket in self.shards.buckets:
            for place, entry, tensor in bucket.members:
                if tensor.grad is not None:
                    check_layout(entry, tensor.grad.layout)
                    present |= 1 << place
        agreement = exchange_intents(
            self.shards.transport,
            intent,
            num_parameters=len(self.shards.parameters.tensors),
            present=present,
            digest=digest,
        )
        agreement.check()
        self.agreed = agreement.present
        self.check_common(self.agreed & ~agreement.common, present)
        if not self._was_compared and self.agreed:
            self.compare()
            self._was_compared = True

    def check_common(self, partial: int, present: int) -> None:
        """Raise `MismatchError` for gradients that some ranks have and others do not.

        Args:
            partial: bits of their parameters, the same on all ranks.
            present: bits of those that are here.
        """
        if partial:
            place = (partial & -partial).bit_length() - 1
            rank = self.shards.transport.world_ranks[self.shards.transport.rank]
            here = "a" if present >> place & 1 else "no"
            raise MismatchError(
                f"parameter {self.shards.parameters.names[place]!r} has a gradient on some ranks"
                f" and none on others: rank {rank} has {here} gradient. Behind"
                " DistributedDataParallel all have the same; with reduce_gradients=True they need"
                " not"
            )

    def compare(self) -> None:
        """Raise `MismatchError` where ranks have different gradients; collective."""
        parameters = self.shards.parameters
        sums = b"".join(checksum(tensor.grad) for tensor in parameters.tensors)
        rows = self.shards.transport.allgather_bytes(sums, name="checksums")
        for place, name in enumerate(parameters.names):
            part = slice(4 * place, 4 * place + 4)
            odd = [rank for rank, row in enumerate(rows) if row[part] != rows[0][part]]
            if odd:
                ranks = self.shards.transport.world_ranks
                raise MismatchError(
                    f"the gradient of parameter {name!r} on rank {ranks[odd[0]]} is not the one on"
                    f" rank {ranks[0]}: they have not been reduced. Give reduce_gradients=True, or"
                    " wrap the model in DistributedDataParallel"
                )

    def hand_over(self) -> None:
        """Give the pieces of this rank their range of the gradients."""
        self._handed.clear()
        for bucket in self.shards.buckets:
            for own in bucket.pieces:
                _, entry, tensor = bucket.members[bucket.places.index(own.piece.entry)]
                if tensor.grad is None:
                    own.tensor.grad = None
                    continue
                whole = gradient = tensor.grad.detach()
                if not bucket.keeps_shape:
                    flat = flat_order(gradient, entry.dims)
                    gradient = flat[own.piece.begin : own.piece.end]
                own.tensor.grad = gradient
                self._handed[own.piece.entry] = HandedGradient(whole, gradient)

    def begin_round(self) -> None:
        """Let go of the gradients."""
        self.agreed = 0
        self._handed.clear()
        for own in self.shards.own_pieces():
            own.tensor.grad = None

    drop_round = begin_round

    def detach(self) -> None:
        """Do nothing: there is nothing to detach."""


def checksum(gradient: torch.Tensor | None) -> bytes:
    """Four bytes that differ, most likely, where gradients do."""
    if gradient is None or gradient.numel() == 0:
        return bytes(4)
    data = gradient.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(data.data).to_bytes(4, "little")
