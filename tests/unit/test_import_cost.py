"""Modules that importing the library loads: torch, and nothing of its compiler."""

from __future__ import annotations

import subprocess
import sys

# Together: each of these begins by importing torch, which is most of the time of this test.
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
print(*(name for name in heavy if name in sys.modules))
"""


def test_imports_leave_the_compiler_alone() -> None:
    """It took two seconds of each process that imported `kadril.nn`."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
