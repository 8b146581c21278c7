"""Imports that most ranks of these tests need: see `imported_once` in conftest.py."""

import hypothesis  # noqa: F401
import pytest  # noqa: F401
import torch._dynamo  # which the first optimizer or trace imports
import torch._inductor.config
import torch.distributed.checkpoint

import kadril.experiment
import kadril.nn
import kadril.sharded
import kadril.torch  # noqa: F401

# Without processes that compile ahead, as in inductor_kit.py.
with torch._inductor.config.patch(compile_threads=1):
    import torch._inductor.compile_fx
