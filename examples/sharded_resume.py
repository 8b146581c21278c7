"""A checkpoint written by two ranks is read by three, then by one: the training just goes on.

    kadril run -np 2 examples/sharded_resume.py checkpoint --steps 10
    kadril run -np 3 examples/sharded_resume.py checkpoint --steps 20
    kadril run -np 1 examples/sharded_resume.py checkpoint --steps 30

Each rank writes what it owns, parameters and state of the optimizer. The index is written last, so
a kill at any moment leaves a checkpoint that can be read. A rank that reads takes what it owns now
from all files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss

import kadril
from kadril.sharded import POS_Trainer

BATCH = 12  # for 1, 2, 3, 4, 6 or 12 ranks


def main() -> None:
    """Train up to a given step, from where the last run ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=10, help="train up to this step")
    options = parser.parse_args()
    world = kadril.init()
    if BATCH % world.size:
        raise SystemExit(f"a batch of {BATCH} cannot be shared by {world.size} ranks")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    trainer = POS_Trainer(model, "adamw", {"lr": 0.01})
    step = 0
    if (options.directory / "index.json").exists():
        step = trainer.load(options.directory)["step"]
        if world.is_main:
            print(f"goes on at step {step} on {world.size} ranks")
    while step < options.steps:
        x = torch.randn(BATCH, 4, dtype=torch.double, generator=torch.Generator().manual_seed(step))
        mine = x[world.rank :: world.size]
        loss = mse_loss(model(mine), mine.norm(dim=1, keepdim=True))
        loss.backward()
        trainer.step()
        step += 1
    trainer.save(options.directory, {"step": step})
    weights = sum(each.detach().sum() for each in model.parameters())
    if world.is_main:
        print(f"step {step}: sum of weights {weights:.9f}")
    kadril.shutdown()


if __name__ == "__main__":
    main()
