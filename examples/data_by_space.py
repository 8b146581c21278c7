"""Data x space: every image is split over two ranks, and every batch over pairs of ranks.

    kadril run -np 4 examples/data_by_space.py

Two ways to say so, with the same result:

    one partition, 2 x 1 x 2 x 1                 two partitions, 1 x 1 x 2 x 1 each

    batch 0..  | 0 | upper half                  ranks 0, 1: batch 0..    gradients are averaged
               | 1 | lower half                  ranks 2, 3: batch 8..    between 0 and 2, 1 and 3,
    batch 8..  | 2 |                                                      by DistributedOptimizer
               | 3 |

In the first, layers see one large tensor: batch norms take the statistics of all of it. In the
second, two models train side by side, and their gradients meet once per step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import kadril
import kadril.nn as knn
import kadril.torch as hvd
from kadril.partition import world_partition

NUM_STEPS = 10
BATCH = 16


def make_model() -> nn.Module:
    """Make an ordinary model: nothing in it knows of ranks."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and their centres of mass, the same on all ranks."""
    dice = torch.Generator().manual_seed(0)
    images = torch.rand(BATCH, 1, 24, 20, generator=dice)
    rows, columns = torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 20)
    weights = images[:, 0] / images.sum((1, 2, 3))[:, None, None]
    places = (weights.sum(2) @ rows, weights.sum(1) @ columns)
    return images, 10 * torch.stack(places, dim=1)


def train(step_loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> list[float]:
    """Train for some steps; return the losses."""
    losses = []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = step_loss()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_one_partition() -> list[float]:
    """Make the batch an axis of the partition; gradients are whole, so any optimizer will do."""
    images, places = make_data()
    P_x = kadril.grid(hvd.size() // 2, 1, 2, 1)
    torch.manual_seed(0)
    model = knn.distribute(make_model(), P_x, images)
    criterion = knn.MSELoss(model.P_y)  # ranks with the same images: the same answers
    mine, wanted = model.block_of(images), knn.block_of(places, model.P_y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train(lambda: criterion(model(mine), wanted), optimizer)


def by_two_partitions() -> list[float]:
    """Make a partition for each part of the batch, and average gradients over them."""
    num_pairs = hvd.size() // 2
    part = hvd.rank() // 2
    images, places = (each.chunk(num_pairs)[part] for each in make_data())
    # All ranks make all partitions and all process sets, in the same order.
    pairs = [
        world_partition().create_partition_inclusive([2 * pair, 2 * pair + 1])
        for pair in range(num_pairs)
    ]
    P_x = pairs[part].create_cartesian_topology_partition([1, 1, 2, 1])
    halves = [hvd.add_process_set(range(half, hvd.size(), 2)) for half in range(2)]
    torch.manual_seed(0)
    model = knn.distribute(make_model(), P_x, images)
    criterion = knn.MSELoss(model.P_y)
    mine = model.block_of(images)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        process_set=halves[hvd.rank() % 2],
    )
    losses = train(lambda: criterion(model(mine), places), optimizer)
    return hvd.allreduce(torch.tensor(losses, dtype=torch.float64), name="losses").tolist()


def main() -> None:
    """Train both ways, and compare."""
    hvd.init()
    if hvd.size() < 4 or hvd.size() % 2:
        raise SystemExit("pairs of ranks: kadril run -np 4 examples/data_by_space.py")
    ours, theirs = by_one_partition(), by_two_partitions()
    if hvd.rank() == 0:
        for step, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            print(f"step {step}: loss {one:.7f} on one partition, {two:.7f} on pairs of ranks")
    hvd.shutdown()


if __name__ == "__main__":
    main()
