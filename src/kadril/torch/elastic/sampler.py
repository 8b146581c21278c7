"""Which rank gets which part of the data, also after ranks changed in the middle of an epoch.

order of the epoch     s s s s s s s s s s s s s s s s s s        the same on all ranks
                       |-- processed_num --|-- remaining_indices --|
ranks 0, 1, 2                               0 1 2 0 1 2 0 (1 2)   the end is filled up
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch.utils.data

from kadril.torch.basics import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a data set among the ranks, and what is left of it when ranks change.

    Record what was used with `record_batch`, put the sampler into a `TorchState`, and call
    `set_epoch` for each epoch. Every rank gets the same number of samples: where they cannot be
    divided, some come twice.

    Args:
        dataset: anything with a length.
        shuffle: whether each epoch has an order of its own.
        seed: of that order; the same on all ranks.

    Attributes:
        epoch: the current one.
        processed_num: samples of this epoch that were used, over all ranks.
        remaining_indices: the others, in order.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.rank = 0
        self.num_replicas = 1
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: another order, nothing used yet."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that every rank used a batch of this size.

        Args:
            batch_idx: place of the batch in the loader; not needed, and taken because programs
                pass it.
            batch_size: of one rank.
        """
        used = self.processed_num + batch_size * self.num_replicas
        self.processed_num = min(used, len(self.dataset))

    def state_dict(self) -> dict[str, Any]:
        """What a sampler needs to go on from here, on any number of ranks."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, with the ranks there are."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide what is left among the ranks there are."""
        self.rank = rank()
        self.num_replicas = size()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)  # noqa: S311 - an order, no secret
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """The samples of this rank."""
        count = len(self.remaining_indices)
        for place in range(self.rank, self.total_size, self.num_replicas):
            yield self.remaining_indices[place % count]

    def __len__(self) -> int:
        """How many samples this rank gets."""
        return self.num_samples
