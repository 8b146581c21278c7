"""Data x space x sharded x tiers: four ways to split one training, in one run, on two hosts.

    kadril run -np 8 examples/hybrid.py --hosts 2

                 host 0: ranks 0 1 2 3                      host 1: ranks 4 5 6 7
             +--------------+--------------+           +--------------+--------------+
    upper    | 0            | 2            |           | 4            | 6            |
    half     |  images 0-3  |  images 4-7  |           |  images 8-11 | images 12-15 |
    lower    | 1            | 3            |           | 5            | 7            |
    half     +--------------+--------------+           +--------------+--------------+
                     |  one copy of the parameters per host  |
                     +-------- tiers: a link between --------+

    space     two ranks share an image; halos move between them, inside their host
    data      pairs of ranks have different images; gradients are averaged over the pairs
    sharded   each rank steps an eighth of the parameters, and has that part of the momentum only
    tiers     sums are made inside a host first; only sums cross between hosts

The result is that of one process with all images and an ordinary optimizer, which is computed too.
`--hosts 2` has one machine stand for two; leave it out where there are two.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn

import kadril
import kadril.nn as knn
from kadril.partition import world_partition
from kadril.sharded import POS_Trainer

BATCH, ROWS, COLUMNS, NUM_STEPS = 16, 12, 8, 5
OPTIONS = {"lr": 0.1, "momentum": 0.9}

# Both sides add up the same float64 numbers in different orders. A weight's gradient has at most
# BATCH * ROWS * COLUMNS terms, so a step differs by less than that many units of 1.1e-16 of a
# number near 1; five steps by 8.5e-13, and momentum makes at most ten times as much of it.
TOLERANCE = 10 * NUM_STEPS * BATCH * ROWS * COLUMNS * 1.1e-16


def make_model() -> nn.Module:
    """Make an ordinary model: nothing in it knows of ranks."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 4, 3, padding=1), nn.Tanh()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
    ).double()


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images, and their mean brightness in the upper and the lower half."""
    dice = torch.Generator().manual_seed(1)
    images = torch.rand(BATCH, 1, ROWS, COLUMNS, generator=dice, dtype=torch.float64)
    return images, torch.stack([half.mean((1, 2, 3)) for half in images.chunk(2, dim=2)], dim=1)


def train_alone() -> dict[str, torch.Tensor]:
    """Train as one process would: all images, an ordinary optimizer."""
    images, wanted = make_data()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), **OPTIONS)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(images), wanted).backward()
        optimizer.step()
    return model.state_dict()


def main() -> None:
    """Train on all ranks, and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, help="how many hosts this machine stands for")
    words = parser.parse_args()
    host = ""
    if words.hosts:  # ranks with different labels are treated as on different hosts
        host = (
            f"host {int(os.environ['KADRIL_RANK']) * words.hosts // int(os.environ['KADRIL_SIZE'])}"
        )
    world = kadril.init(host_label=host)
    if world.size % 2 or BATCH % (world.size // 2):
        raise SystemExit("pairs of ranks: kadril run -np 8 examples/hybrid.py --hosts 2")

    # Space: ranks 2i and 2i + 1 share the images of pair i. All ranks make all pairs.
    num_pairs, pair = world.size // 2, world.rank // 2
    pairs = [
        world_partition().create_partition_inclusive([2 * i, 2 * i + 1]) for i in range(num_pairs)
    ]
    P_x = pairs[pair].create_cartesian_topology_partition([1, 1, 2, 1])
    # Data: each pair has its part of the batch.
    images, wanted = (each.chunk(num_pairs)[pair] for each in make_data())
    model = knn.distribute(make_model(), P_x, images)
    criterion = knn.MSELoss(model.P_y)
    mine = model.block_of(images)
    # Sharded: every rank owns a part of the optimizer. Tiers: the transport between all ranks.
    trainer = POS_Trainer(model, "sgd", OPTIONS)
    for _ in range(NUM_STEPS):
        trainer.zero_grad()
        criterion(model(mine), wanted).backward()
        trainer.step()

    state = [value for each in trainer.optimizer.state.values() for value in each.values()]
    print(
        f"rank {world.rank} on host {world.layout.hosts.index(world.layout.host_of(world.rank))}:"
        f" images {pair * len(images)} to {(pair + 1) * len(images) - 1}, rows of {mine.shape[2]},"
        f" momentum of {sum(value.numel() for value in state if value is not None)} parameters"
    )
    trained, alone = model.state_dict(), train_alone()
    worst = max(float((trained[name] - alone[name]).abs().max()) for name in alone)
    if worst > TOLERANCE:
        raise SystemExit(
            f"rank {world.rank}: {worst:.2g} from one process, {TOLERANCE:.2g} allowed"
        )
    if world.is_main:
        print(
            f"{sum(each.numel() for each in alone.values())} parameters on {world.size} ranks of"
            f" {len(world.layout.hosts)} hosts over {world.transport.kind}: as one process trains"
            f" them, within {TOLERANCE:.2g}"
        )
    kadril.shutdown()


if __name__ == "__main__":
    main()
