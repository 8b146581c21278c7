"""The state of all ranks at a commit, in memory that outlives each of them.

    block     | what rank 0 owns | what rank 1 owns | ...      headers say what lies where

The ranks of a host share the block: each writes its own part, and any one that is left has all of
it, on however many ranks the job goes on. Where ranks share no memory each has a block of its own,
with the parts of all of them.

Two blocks take turns, so that the last commit stays whole while the next one is written. A rank
begins to write when all have come to that commit: they have kept the one before it by then, and
nobody will go back to the one before that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from kadril.sharded.ownership.shards import Shards
from kadril.sharded.ownership.shared_memory import forget_other_worlds, share_block
from kadril.sharded.state.layout import lay_out, read_layout
from kadril.sharded.state.own_state import own_pieces
from kadril.sharded.state.stored_state import StoredParameter, StoredPiece, StoredState
from kadril.sharded.state.value_kinds import dtype_from
from kadril.transport.agreement import allgather_json
from kadril.transport.base import Transport

__all__ = ["CommitRoom", "CommittedState"]

OTHERWISE = "each rank keeps the whole state at every commit"


@dataclasses.dataclass(frozen=True)
class CommittedState:
    """State of all ranks at one moment.

    Attributes:
        block: their bytes, one rank after the other.
        counts: number of bytes of each rank.
        headers: of each rank; see layout.py.
    """

    block: torch.Tensor
    counts: Sequence[int]
    headers: Sequence[Mapping[str, Any]]

    def stored(self, shards: Shards, groups: Sequence[Mapping[str, Any]]) -> StoredState:
        """Return it in the form in which state is loaded, on any number of ranks.

        Args:
            shards: the parameters, as they are divided now.
            groups: options of each parameter group.
        """
        pieces: dict[str, list[StoredPiece]] = {name: [] for name in shards.parameters.names}
        begin = 0
        for count, header in zip(self.counts, self.headers, strict=True):
            for name, piece in read_layout(header, partial(self._read, begin)):
                if piece.values:
                    pieces[name].append(piece)
            begin += count
        return StoredState(
            None,
            groups,
            [
                StoredParameter(
                    entry.name,
                    entry.shape,
                    None,
                    entry.dims,
                    tuple(sorted(pieces[entry.name], key=lambda piece: piece.begin)),
                    entry.group,
                    is_partial=not pieces[entry.name],
                )
                for entry in shards.parameters.entries()
            ],
        )

    def _read(self, begin: int, described: Mapping[str, Any]) -> torch.Tensor:
        """Return a copy of a tensor: the block is written again at a later commit."""
        dtype, shape = dtype_from(described["dtype"]), torch.Size(described["shape"])
        first = begin + described["offset"]
        flat = self.block[first : first + shape.numel() * dtype.itemsize]
        return flat.clone().view(dtype).reshape(shape)


class CommitRoom:
    """Makes committed states, in two blocks by turns.

    Args:
        transport: dedicated transport over the ranks.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._blocks = [torch.empty(0, dtype=torch.uint8) for _ in range(2)]
        self._are_shared = [False, False]
        self._turn = 0
        self._has_committed = False

    def commit(self, shards: Shards, optimizer: torch.optim.Optimizer) -> CommittedState:
        """Put the state of all ranks together; collective."""
        header, tensors, num_bytes = lay_out(own_pieces(shards, optimizer))
        everyone = allgather_json(self._transport, [num_bytes, header], "commit")
        if not self._has_committed:
            self._has_committed = True
            forget_other_worlds(self._transport)  # all have come, with what they took from there
        counts = [each[0] for each in everyone]
        block, is_shared = self._next_block(sum(counts))
        begin = sum(counts[: self._transport.rank])
        own = block[begin : begin + num_bytes]
        places = [
            value["offset"]
            for piece in header.values()
            for value in piece["values"].values()
            if "offset" in value
        ]
        for place, tensor in zip(places, tensors, strict=True):
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            own[place : place + flat.numel()].copy_(flat)
        if is_shared:
            self._transport.barrier(name="committed")
        elif sum(counts):
            self._transport.allgatherv(own.clone(), block, counts, name="committed")
        return CommittedState(block, counts, [each[1] for each in everyone])

    def take_over(self, given: CommittedState | None) -> CommittedState | None:
        """Give all ranks what rank 0 gives, which may be of another world; collective."""
        root = self._transport.rank == 0
        mine = [list(given.counts), list(given.headers)] if root and given is not None else None
        described = allgather_json(self._transport, mine, "take over")[0]
        if described is None:
            return None
        counts, headers = described
        block, is_shared = self._next_block(sum(counts))
        if root and given is not None:
            block.copy_(given.block[: sum(counts)])
        if is_shared:
            self._transport.barrier(name="taken over")
        elif sum(counts):
            self._transport.broadcast(block, 0, name="taken over")
        return CommittedState(block, counts, headers)

    def _next_block(self, num_bytes: int) -> tuple[torch.Tensor, bool]:
        """Return memory for a state, and whether all ranks share it; collective."""
        turn, self._turn = self._turn, 1 - self._turn
        if self._blocks[turn].numel() < num_bytes:
            shared = share_block(self._transport, num_bytes, OTHERWISE)
            self._are_shared[turn] = shared is not None
            if shared is None:
                shared = torch.empty(num_bytes, dtype=torch.uint8)
            self._blocks[turn] = shared
        return self._blocks[turn][:num_bytes], self._are_shared[turn]
