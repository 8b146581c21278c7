"""The same for torchrun: rank 1 kills itself, and all processes are started again.

torchrun --standalone --nproc-per-node 3 --max-restarts 3 torchrun_rank.py DIRECTORY

Rank 0 writes the step, the model and the optimizer to a file after each step, from which all ranks
go on: torchrun itself keeps nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rank import NUM_STEPS, model_and_data


def main() -> None:
    """Train until rank 1 was killed once and some steps have followed."""
    saved = Path(sys.argv[1]) / "saved.pt"
    dist.init_process_group("gloo")
    model, data = model_and_data()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step, is_first = 0, os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if not is_first:
        step, of_model, of_optimizer = torch.load(saved)
        model.load_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
    has_told = is_first
    while step < 2 * NUM_STEPS:
        optimizer.zero_grad()
        parallel(data).square().mean().backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            if not has_told:
                print(f"stepped {time.monotonic()}", flush=True)
                has_told = True
            torch.save((step, model.state_dict(), optimizer.state_dict()), f"{saved}.part")
            Path(f"{saved}.part").replace(saved)
        dist.barrier()
        if is_first and dist.get_rank() == 1 and step == NUM_STEPS:
            print(f"killed {time.monotonic()}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
