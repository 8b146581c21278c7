"""Time `torch.compile` of a split model: forward and backward pass of a small U-Net.

    python benchmarks/partition/compiled.py [--rounds N]

Starts two ranks, each held on a core, and prints a line for each setting. `twin` is what
`distribute` makes of the model; `layers` is the same model written with layers of `kadril.nn`;
`plain` is the model on one rank, while the other one sleeps.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

import torch
from harness.program import leave_answer, read_words, run_program
from harness.setting import Setting, time_settings
from harness.turns import slowest
from torch import nn
from torch.nn import functional

import kadril
import kadril.nn as knn
from kadril.partition import Partition, world_partition

NUM_RANKS = 2
TIMEOUT = 900.0
SHAPE = (2, 4, 128, 128)


class UNet(nn.Module):
    """One level down and up, with some arithmetic between layers.

    Args:
        P_x: where inputs lie; None for an ordinary model.
    """

    def __init__(self, P_x: Partition | None = None) -> None:
        super().__init__()

        def conv(num_in: int, num_out: int) -> nn.Module:
            layer = nn.Conv2d(num_in, num_out, 3, padding=1)
            return layer if P_x is None else knn.DistributedConv2d.of(layer, P_x)

        self.first, self.down = conv(4, 16), conv(16, 32)
        self.back, self.last = conv(32, 16), conv(32, 4)
        if P_x is None:
            self.pool: nn.Module = nn.MaxPool2d(2)
            self.up: nn.Module = nn.Upsample(scale_factor=2)
        else:
            self.pool = knn.DistributedMaxPool2d(P_x, 2)
            self.up = knn.DistributedUpsample(P_x, scale_factor=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map an image to an image."""
        fine = functional.gelu(self.first(x)) * 1.5 + 0.1
        coarse = functional.silu(self.down(self.pool(fine)))
        coarse = torch.tanh(coarse) * torch.sigmoid(coarse) + 0.5 * coarse
        back = functional.gelu(self.back(self.up(coarse)))
        return torch.tanh(self.last(torch.cat([fine, back], 1)))


def step(model: Callable[..., torch.Tensor], x: torch.Tensor) -> Callable[[], None]:
    """A forward and a backward pass."""
    leaf = x.clone().requires_grad_()

    def call() -> None:
        model(leaf).square().sum().backward()

    return call


def main() -> None:
    """The program of a rank."""
    words = read_words()
    torch.set_num_threads(1)
    world = kadril.init()
    P_x = world_partition(world).create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    x = torch.randn(SHAPE)
    plain = UNet()
    torch.manual_seed(0)
    layers = UNet(P_x)
    twin = knn.distribute(plain, P_x, x)
    block = knn.block_of(x, P_x)
    models: dict[str, tuple[Any, torch.Tensor]] = {"twin": (twin, block), "layers": (layers, block)}
    if world.rank == 0:
        models["plain"] = (plain, x)
    settings = []
    for name in ("twin", "layers", "plain"):
        for kind in ("", ", compiled"):
            if name not in models:
                settings.append(Setting(name + kind, lambda: None))
                continue
            model, given = models[name]
            call = step(torch.compile(model) if kind else model, given)
            settings.append(Setting(name + kind, call, num_calls=3, num_warm_ups=2))
    samples = time_settings(settings, num_rounds=words.rounds, barrier=world.transport.barrier)
    leave_answer(words.directory, world.rank, {"samples": samples})
    kadril.shutdown()


def measure(num_rounds: int) -> None:
    """Run the ranks, and print what came out."""
    words = ["--rounds", str(num_rounds)]
    answers = run_program(Path(__file__), words, num_ranks=NUM_RANKS, timeout=TIMEOUT)
    for name, rounds in slowest([one["samples"] for one in answers]).items():
        times = sorted(1e3 * sample for turn in rounds for sample in turn)
        tenth = len(times) // 10
        middle = statistics.median(times)
        print(f"{name:18} {middle:7.1f} ms  ({times[tenth]:.1f}-{times[-1 - tenth]:.1f})")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        main()
    else:
        measure(int(sys.argv[2]) if len(sys.argv) > 2 else 10)
