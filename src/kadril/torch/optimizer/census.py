"""The census: which parameters got a gradient on any rank, and of which kind.

Ranks may disagree: a dynamic graph skips a layer here and not there. Who has no gradient takes part
with zeros, but must not step a parameter that got none *anywhere* (weight decay would change it,
where a single process leaves it alone), and has to know whether its peers send rows of a sparse
gradient. A few bytes say so, maximum over the ranks:

    dense     one byte for each parameter: 1 where a rank has a dense gradient
    sparse    one byte for each: the number of sparse dims where a rank has a sparse gradient
    layout    a digest of the parameters, and its complement: unless all ranks have the same, the
              maximum of one or of the other is not a rank's own

It is submitted after the last gradient and travels beside it. Where all is as expected, which is
nearly always, it is looked at with a single comparison.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kadril.errors import MismatchError
from kadril.shared_engine.process_sets import ProcessSet
from kadril.shared_engine.reduce_ops import Max
from kadril.torch.ops import allreduce_async_, synchronize
from kadril.torch.optimizer.bucket import flat_tensor

__all__ = ["Census", "Findings"]

DIGEST_BYTES = 8


class Findings(NamedTuple):
    """Gradients that exist on any rank, by index of the parameter."""

    dense: list[int]
    sparse_dims: list[int]

    def is_absent(self, index: int) -> bool:
        """Whether no rank has a gradient."""
        return not self.dense[index] and not self.sparse_dims[index]


class Census:
    """A few bytes per parameter, reduced once per round.

    Attributes:
        is_layout_equal: whether the parameters of all ranks are alike; known after `wait`.
    """

    def __init__(self, prefix: str, process_set: ProcessSet) -> None:
        self._name = f"{prefix}.census"
        self.process_set = process_set
        self.is_layout_equal = True
        self._num_parameters = 0
        self._expected = torch.empty(0, dtype=torch.uint8)
        self._handle: int | None = None

    def resize(self, num_parameters: int, digest: bytes) -> None:
        """Count parameters that were added; between rounds only.

        Args:
            num_parameters: with those that were there.
            digest: of what has to be the same on all ranks.
        """
        before, count = self._num_parameters, num_parameters
        expected = torch.zeros(2 * count + 2 * DIGEST_BYTES, dtype=torch.uint8)
        expected[:count] = 1
        expected[:before] = self._expected[:before]
        expected[count : count + before] = self._expected[before : 2 * before]
        layout = torch.frombuffer(bytearray(digest[:DIGEST_BYTES]), dtype=torch.uint8)
        expected[2 * count : -DIGEST_BYTES] = layout
        expected[-DIGEST_BYTES:] = 255 - layout
        self._num_parameters = count
        self._expected = expected
        self._codes = flat_tensor(len(expected), torch.uint8, torch.device("cpu"))
        self._codes.copy_(expected)
        self._is_plain = True

    def mark_absent(self, index: int) -> None:
        """Say that this rank has no gradient."""
        self._mark(self._codes, index, 0, 0)
        self._is_plain = False

    def mark_sparse(self, index: int, sparse_dim: int) -> None:
        """Say that this rank has a sparse gradient."""
        self._mark(self._codes, index, 0, sparse_dim)
        self._is_plain = False

    def expect_sparse(self, index: int, sparse_dim: int) -> None:
        """Say that sparse gradients are to be expected from the next round on."""
        self._mark(self._expected, index, 0, sparse_dim)
        self._is_plain = False

    def _mark(self, codes: torch.Tensor, index: int, dense: int, sparse_dim: int) -> None:
        codes[index] = dense
        codes[self._num_parameters + index] = sparse_dim

    def launch(self) -> None:
        """Submit it."""
        self._handle = allreduce_async_(
            self._codes, name=self._name, op=Max, process_set=self.process_set
        )

    def wait(self) -> Findings | None:
        """Return which gradients exist on any rank, or None where all is as expected."""
        handle, self._handle = self._handle, None
        if handle is None:
            return None
        try:
            synchronize(handle)
        except MismatchError:  # another number of parameters
            self.is_layout_equal = False
            return None
        if self._is_plain and torch.equal(self._codes, self._expected):
            return None
        self._is_plain = False
        count = self._num_parameters
        layout = slice(2 * count, None)
        self.is_layout_equal = torch.equal(self._codes[layout], self._expected[layout])
        return Findings(self._codes[:count].tolist(), self._codes[count : 2 * count].tolist())

    def reset(self) -> None:
        """Begin a round: all is as expected until marked."""
        if not self._is_plain:
            self._codes.copy_(self._expected)
            self._is_plain = True
