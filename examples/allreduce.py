"""Two ranks add up a tensor, and share one without a copy.

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
    world = kadril.init()
    rank, size, transport = world.rank, world.size, world.transport

    # Each rank has its own numbers; after the all-reduce everybody has their sum, in place.
    tensor = torch.arange(4, dtype=torch.float32) + 10 * rank
    before = tensor.tolist()
    transport.allreduce(tensor)
    print(f"rank {rank} of {size}: {before} summed over all ranks is {tensor.tolist()}")

    # The mean, as gradients want it: the scale is applied while the numbers are added.
    gradient = torch.full((3,), float(rank))
    transport.allreduce(gradient, postscale=1 / size)
    print(f"rank {rank}: the mean of all ranks is {gradient.tolist()}")

    # Memory that the ranks of a host share: the same call, and no copy in or out.
    shared = world.shared_empty(1 << 20)
    shared.fill_(rank + 1)
    transport.allreduce(shared)
    total = size * (size + 1) / 2
    is_right = bool((shared == total).all())
    print(f"rank {rank}: {len(shared)} shared numbers are all {total}: {is_right}")

    kadril.shutdown()


if __name__ == "__main__":
    main()
