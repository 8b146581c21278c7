"""Each half of the world tries out a learning rate, at the same time, and then they compare.

    kadril run -np 4 examples/process_sets.py

    ranks   0   2   4 ...    process set `even`:  lr 0.01     gradients are averaged
            1   3   5 ...    process set `odd`:   lr 0.1      within a set only

Both train beside each other: a set waits for its own members only.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss

import kadril.torch as hvd

NUM_STEPS = 30


def make_data(num_parts: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one part of 64 points on a plane, which are the same for all ranks."""
    dice = torch.Generator().manual_seed(0)
    x = torch.randn(64, 2, generator=dice)
    y = x @ torch.tensor([[2.0], [-1.0]]) + 0.5
    return x[part::num_parts], y[part::num_parts]


def train(process_set: hvd.ProcessSet, lr: float) -> torch.Tensor:
    """Train with the members of this set; return the mean of their losses at the end."""
    torch.manual_seed(0)  # so all members begin with the same weights
    model = nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=lr),
        named_parameters=model.named_parameters(),
        process_set=process_set,
    )
    x, y = make_data(process_set.size(), process_set.rank())
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        loss = mse_loss(model(x), y)
    return hvd.allreduce(loss, name="loss", process_set=process_set)


def main() -> None:
    """Train both halves, then let the world compare."""
    hvd.init()
    if hvd.size() < 2:
        raise SystemExit("two sets need two ranks: kadril run -np 2 examples/process_sets.py")
    # Every rank adds all sets, in the same order, including those that it is not in.
    even = hvd.add_process_set(list(range(0, hvd.size(), 2)))
    odd = hvd.add_process_set(list(range(1, hvd.size(), 2)))
    mine, lr = (even, 0.01) if even.included() else (odd, 0.1)

    loss = train(mine, lr)
    if mine.rank() == 0:
        print(f"ranks {mine.ranks}: learning rate {lr}, loss {loss:.6f} after {NUM_STEPS} steps")

    # Without a process set, all ranks take part.
    best = hvd.allreduce(loss, name="best", op=hvd.Min)
    found = hvd.allgather_object({"lr": lr, "loss": float(loss)}, name="found")
    if hvd.rank() == 0:
        lr = next(one["lr"] for one in found if one["loss"] == float(best))
        print(f"all {hvd.size()} ranks: learning rate {lr} is the better one")
    hvd.shutdown()


if __name__ == "__main__":
    main()
