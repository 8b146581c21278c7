"""The inputs of a model: their blocks are checked, and balanced.

A common mistake is to give every worker the whole input instead of its block: that would be taken
for the blocks of a larger one, with every row twice. Two things together give it away: the blocks
of all workers are as large as the whole example, and they are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kadril.ops.halo import HaloExchanger
from kadril.ops.structure import agree
from kadril.partition import Partition, balanced_intervals

__all__ = ["BalancedInput", "InputBalancer"]


class BalancedInput(NamedTuple):
    """An input that all workers have agreed on.

    Attributes:
        block: the balanced one of this worker.
        sizes: of the whole.
        shapes: of the blocks that the workers gave.
    """

    block: torch.Tensor
    sizes: tuple[int, ...]
    shapes: Sequence[tuple[int, ...]]


class InputBalancer:
    """Takes blocks of an input, checks that they fit together, and balances them.

    Args:
        P_x: where the input is.
        what: name of the input in errors.
        example: global sizes of the example; None where it had no such input.
    """

    def __init__(self, P_x: Partition, what: str, example: Sequence[int] | None = None) -> None:
        self.P_x = P_x
        self.what = what
        self.example = example
        self._exchanger = HaloExchanger(
            P_x,
            [lambda have: balanced_intervals(have[-1].stop, len(have))] * P_x.dim,
            what=what,
        )

    def __call__(self, x: torch.Tensor) -> BalancedInput:
        """Return the balanced block; collective over the partition.

        Raises:
            ValueError: the partition does not match the tensor.
            MismatchError: the blocks do not fit together.
        """
        structure = agree(self.P_x, x, self.what)
        blocks = structure.blocks(self.what)
        for dim, have in enumerate(blocks):
            if have[-1].stop < len(have):
                raise ValueError(
                    f"{self.what}: dim {dim} has {have[-1].stop} elements, too few for"
                    f" {len(have)} workers along axis {dim}"
                )
        if not all(have == balanced_intervals(have[-1].stop, len(have)) for have in blocks):
            x = self._exchanger.exchange(x, structure)
        return BalancedInput(x, tuple(have[-1].stop for have in blocks), structure.shapes)

    def refuse_whole(self, balanced: BalancedInput) -> None:
        """Refuse an input that every worker gave whole; collective over the partition.

        Raises:
            ValueError: they did; on all of them.
        """
        split_dims = [dim for dim, length in enumerate(self.P_x.shape) if length > 1]
        if not split_dims or self.example is None:
            return
        example = self.example
        if any(shape[dim] != example[dim] for shape in balanced.shapes for dim in split_dims):
            return
        digests = self.P_x.transport.allgather_bytes(
            digest_of(balanced.block), name=f"{self.what}, whether it is the whole"
        )
        if len(set(digests)) > 1:
            return
        shape = list(balanced.shapes[0])
        raise ValueError(
            f"{self.what}: all {self.P_x.size} workers gave the same tensor of shape {shape}, as"
            f" large as the whole example: taken as blocks, they are an input of shape"
            f" {list(balanced.sizes)} with the same part again and again. Give blocks:"
            " twin(twin.block_of(x)); or the whole by name: twin.whole(x). If they are blocks that"
            " happen to be equal, say so: twin.takes_equal_blocks = True"
        )


def digest_of(x: torch.Tensor) -> bytes:
    """Return a few bytes that differ where tensors do."""
    data = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(data.numpy().data, digest_size=16).digest()
