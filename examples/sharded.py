"""Optimizer state, gradients and parameters shared out over ranks: a model of letters in a text.

    kadril run -np 2 examples/sharded.py

Each rank holds half of Adam's state. On one host all ranks use one copy of the parameters; each
steps its half of it. No rank ever has all gradients:

    backward   a gradient comes, goes to whoever owns its elements, and is freed
    step       each rank steps what it owns

Try --stage 1, which keeps gradients, and --rule greedy, which keeps parameters whole.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import kadril
from kadril.sharded import POS_Trainer

TEXT = "a horovod is danced in a ring and a kadril is danced on a grid; " * 8
LETTERS = sorted(set(TEXT))
CONTEXT, WIDTH, BATCH, NUM_STEPS = 8, 64, 32, 60


def make_model() -> nn.Module:
    """Make a model that predicts the next letter from the last eight."""
    return nn.Sequential(
        nn.Embedding(len(LETTERS), WIDTH),
        nn.Flatten(),
        nn.Linear(CONTEXT * WIDTH, 4 * WIDTH),
        nn.GELU(),
        nn.Linear(4 * WIDTH, len(LETTERS)),
    )


def batches(rank: int, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return this rank's rows of every batch."""
    codes = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    windows = codes.unfold(0, CONTEXT + 1, 1)
    order = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(windows), (NUM_STEPS, BATCH), generator=order)
    return [(rows[:, :-1], rows[:, -1]) for rows in windows[chosen[:, rank::size]]]


def main() -> None:
    """Train, and print how much state each rank holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=2, help="1 keeps gradients, 2 frees them")
    parser.add_argument("--rule", help="flat, greedy or largest_first")
    options = parser.parse_args()
    world = kadril.init()
    if BATCH % world.size:
        raise SystemExit(f"a batch of {BATCH} cannot be shared by {world.size} ranks")

    torch.manual_seed(world.rank)  # all ranks get the parameters of rank 0
    model = make_model()
    trainer = POS_Trainer(model, "adam", {"lr": 3e-3}, stage=options.stage, rule=options.rule)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, NUM_STEPS)
    for step, (x, y) in enumerate(batches(world.rank, world.size)):
        trainer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        norm = trainer.clip_grad_norm_(1.0)
        trainer.step()
        schedule.step()
        if world.is_main and (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {loss:.4f}, gradient {norm:.4f} before clipping")

    state = trainer.optimizer.state.values()
    held = sum(value.numel() for each in state for value in each.values() if value.dim())
    weights = sum(each.double().sum() for each in model.parameters())
    print(
        f"rank {world.rank}: state of {held} numbers for"
        f" {sum(each.numel() for each in model.parameters())} parameters,"
        f" sum of weights {weights:.6f}"
    )
    kadril.shutdown()


if __name__ == "__main__":
    main()
