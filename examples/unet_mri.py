"""A 3-D U-Net learns to find grey matter in a brain, each rank with a part of the volume.

    kadril run -np 4 examples/unet_mri.py --resolution 1

The model is ordinary torch; `kadril.nn.distribute` splits it, with the exact result. That saves
memory of the training, which is mostly volumes that torch keeps for the backward pass: each rank
has its block of them, and halos. What a process needs before, for torch itself most of all, stays.
A test makes sure that each of four ranks needs less than half of what one needs alone.

The brain is MNI152, 197 x 233 x 189 voxels, which comes inside a package: pip install nilearn
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import kadril
import kadril.nn as knn

GRIDS = {1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 2, 1), 6: (3, 2, 1), 8: (2, 2, 2)}


def block(num_in: int, num_out: int) -> nn.Sequential:
    """Make two convolutions, each with a norm over all of the volume."""
    layers: list[nn.Module] = []
    for num in (num_in, num_out):
        layers += [nn.Conv3d(num, num_out, 3, padding=1, bias=False)]
        layers += [nn.InstanceNorm3d(num_out, affine=True), nn.LeakyReLU(0.01, inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """An ordinary model: nothing in it knows of ranks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1, self.down2 = block(1, width), block(width, 2 * width)
        self.bottom = block(2 * width, 4 * width)
        self.up2, self.up1 = block(6 * width, 2 * width), block(3 * width, width)
        self.pool, self.out = nn.MaxPool3d(2), nn.Conv3d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map a volume to the logits of grey matter."""
        first = self.down1(x)
        second = self.down2(self.pool(first))
        y = self.bottom(self.pool(second))
        for skip, layers in ((second, self.up2), (first, self.up1)):
            y = functional.interpolate(y, size=skip.shape[2:], mode="trilinear")
            y = layers(torch.cat([skip, y], dim=1))
        logits: torch.Tensor = self.out(y)
        return logits


def load_brain(resolution: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the brain, and where it is grey matter; both 1 x 1 x depth x height x width."""
    try:
        from nilearn import datasets
    except ImportError:
        raise SystemExit("the brain comes inside a package: pip install nilearn") from None
    brain = datasets.load_mni152_template(resolution=resolution).get_fdata()
    grey = datasets.load_mni152_gm_template(resolution=resolution).get_fdata() > 0.5
    x, y = (torch.from_numpy(each.astype("float32"))[None, None] for each in (brain, grey))
    return x, y


def memory() -> tuple[int, int]:
    """Return the MiB that this process has, and the most that it ever had."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize() // 2**20, most // 1024


def main() -> None:
    """Train, and print the loss and the memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resolution", type=int, default=4, help="in mm; 1 is all there is")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    world = kadril.init()
    torch.manual_seed(0)
    brain, grey = load_brain(options.resolution)
    P_x = kadril.grid(1, 1, *GRIDS[world.size])

    model = knn.distribute(UNet(options.width), P_x, brain)
    criterion = knn.BCEWithLogitsLoss(model.P_y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    mine, wanted = model.block_of(brain), model.block_of(grey)
    shape = " x ".join(str(size) for size in brain.shape[2:])
    del brain, grey
    before, _ = memory()
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = criterion(model(mine), wanted)
        loss.backward()
        optimizer.step()
        if world.rank == 0:
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
    print(
        f"rank {world.rank}: {tuple(mine.shape[2:])} of {shape} voxels,"
        f" {memory()[1] - before} MiB for the training, beside {before} before",
        flush=True,
    )
    kadril.shutdown()


if __name__ == "__main__":
    main()
