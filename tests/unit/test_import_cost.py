"""Modules that importing the library loads: torch, and nothing of its compiler."""

from __future__ import annotations

import subprocess
import sys

# Together: each of these begins by importing torch, which is most of the time of this test. A step
# of a trainer, with a scheduler and what is done between steps, loads no more than they do.
PROGRAM = """
import sys
import kadril.torch, kadril.nn, kadril.sharded, kadril.ops, kadril.ddl, kadril.testing
import kadril.testing.adjoint

import torch
from kadril.ops.calling import uncompiled

@uncompiled
def add(x, y=1):
    return x + y

assert add(1, y=2) == 3  # nor does a call load it
heavy = ("torch._dynamo", "torch._inductor", "sympy", "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed.checkpoint",
    "torch.onnx", "pytest", "scipy", "matplotlib")
print("imports:", *(name for name in heavy if name in sys.modules))

kadril.init()
model = torch.nn.Linear(2, 2)
trainer = kadril.sharded.POS_Trainer(model, "adam", {"lr": 1.0})
schedule = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1)
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
    trainer.step()
    schedule.step()
    trainer.zero_grad()
assert trainer.learning_rate < 1
kadril.shutdown()
print("trainer:", *(name for name in ("torch._dynamo",) if name in sys.modules))
"""


def test_imports_and_trainers_leave_the_compiler_alone() -> None:
    """The compiler took two seconds of each process that imported `kadril.nn`.

    In a trainer, it took 70 MiB of each rank, more than a quarter of what torch itself takes.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["imports:", "trainer:"]
