"""Gradient accumulation, clipping, and a loss scaler, all at once.

    kadril run -np 2 examples/accumulation.py

A step of 64 samples is made in batches of 8, shared out over the ranks:

    backward  backward  backward  backward | synchronize | unscale | clip | step
    +-------- gradients add up on the rank -+ and are averaged over ranks here
"""

from __future__ import annotations

import argparse
import contextlib

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

import kadril.torch as hvd

STEP_SAMPLES, BATCH = 64, 8
NUM_STEPS = 20


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return what all ranks learn: vectors, and their lengths."""
    x = torch.randn(NUM_STEPS, STEP_SAMPLES, 4, generator=torch.Generator().manual_seed(0))
    return x, x.norm(dim=-1, keepdim=True)


def main() -> None:
    """Train in half precision, or in single precision with --full."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="compute in float32")
    options = parser.parse_args()
    hvd.init()
    if STEP_SAMPLES % (BATCH * hvd.size()):
        raise SystemExit(f"{STEP_SAMPLES // BATCH} batches cannot be shared by {hvd.size()} ranks")
    num_passes = STEP_SAMPLES // (BATCH * hvd.size())
    half = torch.autocast("cpu", dtype=torch.float16)

    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.02),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=num_passes,
    )
    # The default scale of 2^16 would skip the first steps, and there are only a few here.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    x, y = make_data()
    for step in range(NUM_STEPS):
        mine = slice(hvd.rank(), None, hvd.size())
        total = torch.zeros(())
        for inputs, targets in zip(
            x[step][mine].split(BATCH), y[step][mine].split(BATCH), strict=True
        ):
            with contextlib.nullcontext() if options.full else half:
                # Gradients of all passes add up; divided by their number, they are the gradient
                # of one large batch.
                loss = mse_loss(model(inputs), targets) / num_passes
            scaler.scale(loss).backward()
            total += loss.detach().float()
        # Clip the mean over all ranks, without the scale.
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), max_norm=1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        loss = hvd.allreduce(total, name="loss")
        if hvd.rank() == 0:
            print(f"step {step}: loss {loss:.6f}, gradient {norm:.6f} before clipping")
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    print(f"rank {hvd.rank()}: {num_passes} passes per step, sum of weights {weights.sum():.6f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
