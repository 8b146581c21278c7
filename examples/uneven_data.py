"""Ranks with different amounts of data: a rank that has no more joins, and the others go on.

    kadril run -np 3 examples/uneven_data.py

    rank 0   step  step  join . . . . . . . . . . .
    rank 1   step  step  step  step  join . . . . .     a rank that has joined gives zeros
    rank 2   step  step  step  step  step  step  join

An average is still divided by the number of *all* ranks: a step that half of the ranks take is half
a step. To avoid that, multiply gradients by `size / number of ranks that are left`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss

import kadril.torch as hvd

NUM_EPOCHS = 5
SLOPE = torch.tensor([[3.0], [-2.0]])


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Make two batches on rank 0, and two more on each rank that follows."""
    dice = torch.Generator().manual_seed(hvd.rank())
    inputs = [torch.randn(16, 2, generator=dice) for _ in range(2 + 2 * hvd.rank())]
    return [(x, x @ SLOPE) for x in inputs]


def main() -> None:
    """Fit a plane."""
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = nn.Linear(2, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    batches = make_batches()
    for epoch in range(1, NUM_EPOCHS + 1):
        for x, y in batches:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
        # Returns when all have joined, with the rank that was the last. That one has taken every
        # step; the others take over its weights.
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        with torch.no_grad():
            loss = mse_loss(model(batches[0][0]), batches[0][1])
        loss = hvd.allreduce(loss, name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss:.6f}; rank {last} was the last to join")
    weights = [round(value, 3) for value in model.weight.flatten().tolist()]
    print(f"rank {hvd.rank()}: {len(batches)} batches, weights {weights}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
