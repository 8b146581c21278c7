"""Random masks that do not depend on how a tensor is split.

Whether an element is kept is decided by a hash of a seed, the number of the call, and the element's
place in the global tensor, and of nothing else:

    key0, key1 = mix(seed, call)                                   once a call
    h = mix'(index + key0, key1)                                   for each element, in 64 bits
    kept where h, as a signed number, is below (1 - p) 2^64 - 2^63

mix is the finalizer of SplitMix64 (two multiplications and three xor-shifts of a Weyl sequence);
mix' has key1 added between the two multiplications, so that the sequences of two calls are not the
same one at different places. A worker computes the hashes of its own elements, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.partition import Interval

__all__ = ["keep_mask", "signed_seed"]

BITS = 1 << 64
WEYL = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB

# Elements that are hashed at a time: int64 numbers of this many stay in a core's cache.
CHUNK = 1 << 15


def mix(number: int) -> int:
    """Apply the finalizer of SplitMix64 to a number of 64 bits."""
    number = (number ^ (number >> 30)) * FIRST % BITS
    number = (number ^ (number >> 27)) * SECOND % BITS
    return number ^ (number >> 31)


def signed_seed(seed: int) -> int:
    """Return the seed in the range of torch.int64 that gives the same masks."""
    return signed(seed % BITS)


def signed(number: int) -> int:
    """Reinterpret an unsigned number of 64 bits as a signed one."""
    return number - BITS if number >= BITS // 2 else number


def xor_shift_(numbers: torch.Tensor, distance: int) -> torch.Tensor:
    """Compute numbers ^= numbers >> distance, with zeros shifted in, in place."""
    shifted = (numbers >> distance).bitwise_and_((1 << (64 - distance)) - 1)
    return numbers.bitwise_xor_(shifted)


def hash_(index: torch.Tensor, keys: tuple[int, int]) -> torch.Tensor:
    """Replace places in the global tensor by their hashes, in place."""
    index.add_(signed(keys[0])).mul_(signed(WEYL))
    xor_shift_(index, 30).mul_(signed(FIRST)).add_(signed(keys[1]))
    xor_shift_(index, 27).mul_(signed(SECOND))
    return xor_shift_(index, 31)


def keep_mask(
    block: Sequence[Interval], sizes: Sequence[int], p: float, seed: int, call: int
) -> torch.Tensor:
    """Return which elements of a block are kept.

    Args:
        block: for each dim, what it has of the global tensor.
        sizes: of the global tensor.
        p: the probability of an element not to be kept, from 0 to 1.
        seed: any whole number.
        call: any whole number.

    Returns:
        A bool tensor of the shape of the block.
    """
    shape = [each.size for each in block]
    if p in (0.0, 1.0):
        return torch.full(shape, p == 0.0)
    # A p too small to matter would give 2^63, one more than there is.
    threshold = min(round((1.0 - p) * BITS), BITS - 1) - BITS // 2
    key = mix((mix(seed % BITS) + WEYL * (call + 1)) % BITS)
    keys = (key, mix((key + WEYL) % BITS))
    starts = torch.zeros(1, dtype=torch.int64)
    for interval, size in zip(block[:-1], sizes[:-1], strict=True):
        places = torch.arange(interval.start, interval.stop)
        starts = (starts[:, None] * size + places).reshape(-1)
    last = block[-1] if block else Interval(0, 1)
    starts = starts * (sizes[-1] if sizes else 1)
    kept = torch.empty(starts.numel(), last.size, dtype=torch.bool)
    num_rows = max(1, CHUNK // max(1, last.size))
    places = torch.arange(last.start, last.stop)
    for first in range(0, starts.numel(), num_rows):
        rows = slice(first, first + num_rows)
        index = starts[rows, None] + places
        torch.lt(hash_(index, keys), threshold, out=kept[rows])
    return kept.view(shape)
