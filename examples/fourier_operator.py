"""A Fourier neural operator learns flow through porous ground, split by batch and by space.

    kadril run -np 4 examples/fourier_operator.py

A Fourier transform needs whole rows and whole columns, one after the other: a repartition between
the two turns pencils by a right angle, there and back.

    blocks of rows                                    blocks of columns
    +-----------+                                     +-----+-----+
    |  rank 0   |   rfft along rows,  repartition     |     |     |   fft along columns, weights,
    +-----------+   keep low modes   ------------->   |  0  |  1  |   inverse fft
    |  rank 1   |                    <-------------   |     |     |
    +-----------+   irfft along rows                  +-----+-----+

On 4 ranks, two such pairs share the batch. The data, 1000 solutions of Darcy's equation on 16 x 16
points, comes inside a package, of which nothing else is needed:

    pip install --no-deps neuraloperator==0.3.0
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import gelu

import kadril
import kadril.nn as knn
from kadril import ops
from kadril.partition import Partition, balanced_intervals

NUM_MODES = 6  # along each dim, of either sign along columns


class SpectralConv(nn.Module):
    """Multiplies the low modes of a field by weights; every rank has all weights."""

    def __init__(self, P_x: Partition, width: int) -> None:
        super().__init__()
        self.P_x = P_x
        batch, _, rows, _ = P_x.shape
        P_m = P_x.create_cartesian_topology_partition([batch, 1, 1, rows])
        self.to_columns, self.to_rows = knn.Repartition(P_x, P_m), knn.Repartition(P_m, P_x)
        self.columns = slice(*balanced_intervals(NUM_MODES, rows)[P_m.index[3]])
        shape = (width, width, 2 * NUM_MODES, NUM_MODES, 2)
        self.weight = nn.Parameter(torch.randn(shape) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map this rank's rows to the same rows of the result."""
        num_columns = x.shape[3]
        modes = torch.fft.rfft(x, dim=3, norm="forward")[..., :NUM_MODES]
        modes = torch.fft.fft(self.to_columns(modes), dim=2, norm="forward")
        num_rows = modes.shape[2]
        kept = [*range(NUM_MODES), *range(num_rows - NUM_MODES, num_rows)]
        # A parameter that all have a copy of: its gradient is summed over all.
        weight = torch.view_as_complex(ops.spread(self.weight, self.P_x.group))
        low = torch.einsum("bixy,ioxy->boxy", modes[:, :, kept], weight[..., self.columns])
        modes = torch.zeros_like(modes).index_copy(2, torch.tensor(kept), low)
        modes = self.to_rows(torch.fft.ifft(modes, dim=2, norm="forward"))
        return torch.fft.irfft(modes, n=num_columns, dim=3, norm="forward")


class FourierOperator(nn.Module):
    """A Fourier neural operator: from the ground to the pressure."""

    def __init__(self, P_x: Partition, width: int, num_layers: int) -> None:
        super().__init__()
        self.lift = knn.Conv2d(P_x, 3, width, 1)
        self.spectral = nn.ModuleList(SpectralConv(P_x, width) for _ in range(num_layers))
        self.local = nn.ModuleList(knn.Conv2d(P_x, width, width, 1) for _ in range(num_layers))
        self.project = knn.Conv2d(P_x, width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Block in, block out."""
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = x + gelu(spectral(x) + local(x))
        y: torch.Tensor = self.project(x)
        return y


def load_darcy(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ground with its coordinates, N x 3 x 16 x 16, and the pressure."""
    package = importlib.util.find_spec("neuralop")
    if package is None or package.origin is None:
        raise SystemExit(
            "the data come inside a package: pip install --no-deps neuraloperator==0.3.0"
        )
    folder = Path(package.origin).parent / "datasets" / "data"
    data = torch.load(folder / f"darcy_{name}_16.pt", weights_only=True)
    ground = data["x"].float()[:, None]
    line = torch.linspace(0, 1, 16)
    places = torch.stack(torch.meshgrid(line, line, indexing="ij")).expand(len(ground), -1, -1, -1)
    return torch.cat([ground, places], dim=1), data["y"][:, None]


def main() -> None:
    """Train, and print the error on solutions that it has not seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    world = kadril.init()
    grids = {1: (1, 1, 1, 1), 2: (1, 1, 2, 1), 4: (2, 1, 2, 1), 6: (2, 1, 3, 1)}
    P_x = kadril.grid(*grids[world.size])
    torch.manual_seed(0)  # the same weights on all ranks
    model = FourierOperator(P_x, options.width, num_layers=3)
    criterion = knn.MSELoss(P_x)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    grounds, pressures = (each[: options.samples] for each in load_darcy("train"))
    for epoch in range(1, options.epochs + 1):
        losses = []
        for ground, pressure in zip(grounds.split(50), pressures.split(50), strict=True):
            optimizer.zero_grad()
            loss = criterion(model(knn.block_of(ground, P_x)), knn.block_of(pressure, P_x))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if world.rank == 0:
            print(f"epoch {epoch}: loss {sum(losses) / len(losses):.6f}", flush=True)

    ground, pressure = load_darcy("test")
    with torch.no_grad():
        found = knn.whole_of(model(knn.block_of(ground, P_x)), P_x)
    error = float((found - pressure).norm() / pressure.norm())
    if world.rank == 0:
        print(f"relative error on {len(ground)} others: {error:.4f}")
    kadril.shutdown()


if __name__ == "__main__":
    main()
