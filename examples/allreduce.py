"""Ranks add up tensors: into new memory, as a mean, and in place in memory that they share.

    kadril run -np 2 examples/allreduce.py

The same program runs on any number of ranks, and alone:

    kadril run -np 4 examples/allreduce.py
    python examples/allreduce.py
"""

from __future__ import annotations

import torch

import kadril


def main() -> None:
    """Add up over all ranks, three times."""
    kadril.init()
    rank, size = kadril.rank(), kadril.size()

    # Each rank has its own numbers; after the all-reduce every rank has their sum.
    numbers = torch.arange(4, dtype=torch.float32) + 10 * rank
    total = kadril.allreduce(numbers)
    print(f"rank {rank} of {size}: {numbers.tolist()} summed over all ranks is {total.tolist()}")

    # The mean, as for gradients; the trailing underscore says that it works in place.
    gradient = torch.full((3,), float(rank))
    kadril.allreduce_(gradient, "mean")
    print(f"rank {rank}: the mean of all ranks is {gradient.tolist()}")

    # Memory that the ranks of a host share: the same call, and nothing is copied.
    shared = kadril.shared_empty(1 << 20)
    shared.fill_(rank + 1)
    kadril.allreduce_(shared)
    expected = size * (size + 1) / 2
    is_right = bool((shared == expected).all())
    print(f"rank {rank}: {len(shared)} shared numbers are all {expected}: {is_right}")

    kadril.shutdown()


if __name__ == "__main__":
    main()
