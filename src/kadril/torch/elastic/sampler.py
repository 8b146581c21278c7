"""Assignment of data to ranks, also after ranks changed in the middle of an epoch.

order of the epoch     s s s s s s s s s s s s s s s s s s        the same on all ranks
                       |---- used ----|--- remaining_indices ---|
ranks 0, 1, 2                          0 1 2 0 1 2 0 (1 2)        the end is filled up
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch.utils.data

from kadril.shared_engine.basics import rank, size
from kadril.shared_engine.elastic.division import num_shares, take_used

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a data set among the ranks, and what is left of it when ranks change.

    Record what was used with `record_batch`, put the sampler into a `TorchState`, and call
    `set_epoch` for each epoch. Then each sample is used once in an epoch, however often ranks
    change and however large the batches of each rank are: `TorchState.commit` learns from all ranks
    how many they have used. The exception is the end of the epoch, where every rank gets the same
    number of samples, and some come twice if they cannot be divided; see `pad`.

    Args:
        dataset: anything with a length.
        shuffle: whether each epoch has an order of its own.
        seed: of that order; the same on all ranks.
        pad: whether samples come twice rather than that ranks get different numbers of them. Where
            False, ranks may have different numbers of batches, and need `join()` at the end.

    Attributes:
        epoch: the current one.
        processed_num: samples of this epoch that were used, over all ranks.
        remaining_indices: those left when the ranks last changed, in order.
    """

    def __init__(
        self, dataset: Sized, shuffle: bool = True, seed: int = 0, *, pad: bool = True
    ) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.pad = pad
        self.epoch = 0
        self.rank = 0
        self.num_replicas = 1
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self._past: list[list[int]] = []  # divisions of this epoch that came to an end
        self._counts = [0]  # what each rank has used in the present one, as far as is known here
        self._num_used = 0  # by this rank
        self.reset()

    @property
    def processed_num(self) -> int:
        """Samples of this epoch that were used, over all ranks."""
        done = len(self.dataset) - len(self.remaining_indices)
        return done + sum(self._real_counts())

    @property
    def num_used(self) -> int:
        """Samples that this rank has used since the ranks last changed."""
        return self._num_used

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: another order, nothing used yet."""
        self.epoch = epoch
        self._past, self._counts = [], [0]
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that this rank used a batch, and suppose that the others used one of this size.

        Args:
            batch_idx: place of the batch in the loader; not needed, and taken because programs
                pass it.
            batch_size: of this rank.
        """
        self._num_used += batch_size
        self._counts = [count + batch_size for count in self._counts]

    def set_counts(self, counts: Sequence[int]) -> None:
        """Take what each rank has used since the ranks last changed, in place of suppositions."""
        self._counts = list(counts)

    def state_dict(self) -> dict[str, Any]:
        """Return what a sampler needs to continue from here, on any number of ranks."""
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "divisions": self._divisions(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from there, with the present ranks."""
        self.epoch = state_dict["epoch"]
        # One of Horovod says only how many of the first samples were used, as if by one rank.
        past = state_dict.get("divisions", [[state_dict["processed_num"]]])
        self._past, self._counts = [list(counts) for counts in past], [0]
        self.reset()

    def reset(self) -> None:
        """Divide what is left among the ranks there are."""
        self._past = self._divisions()
        self.rank = rank()
        self.num_replicas = size()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)  # noqa: S311 - an order, no secret
        self.remaining_indices = take_used(indices, self._past)
        self._counts = [0] * self.num_replicas
        self._num_used = 0
        shares = num_shares(len(self.remaining_indices), self.num_replicas)
        self.num_samples = shares[0] if self.pad else shares[self.rank]
        self.total_size = shares[0] * self.num_replicas

    def _real_counts(self) -> list[int]:
        """Return what each rank has used, without samples that only fill up the end."""
        shares = num_shares(len(self.remaining_indices), len(self._counts))
        return [min(count, share) for count, share in zip(self._counts, shares, strict=True)]

    def _divisions(self) -> list[list[int]]:
        return [*self._past, self._real_counts()] if any(self._counts) else list(self._past)

    def __iter__(self) -> Iterator[int]:
        """The samples of this rank."""
        count = len(self.remaining_indices)
        for number in range(self.num_samples):
            yield self.remaining_indices[(number * self.num_replicas + self.rank) % count]

    def __len__(self) -> int:
        """Number of samples that this rank gets."""
        return self.num_samples
