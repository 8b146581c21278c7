"""The memory of a rank: between steps, and during one."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness.memory_trace import rank_bytes, trace_phases
from harness.peak_memory import peak_growth
from models import MODELS, Task, make_stack, make_tiny
from settings import make_step
from torch import nn

import kadril

__all__ = ["TRACED", "measure_memory", "trace_step"]

NUM_STEPS = 10


def measure_memory(world: kadril.World, setting: str, model: str) -> dict[str, Any]:
    """Bytes of memory that are this rank's share after some steps, and before.

    Before, a tiny model has been trained in the same setting: all that this needs is loaded.
    """
    make_step(setting, make_tiny(), fused=True)()
    world.transport.barrier()
    before = proportional_bytes()
    world.transport.barrier()
    step = make_step(setting, MODELS[model](world.rank), fused=True)
    for _ in range(NUM_STEPS):
        step()
    world.transport.barrier()
    after = proportional_bytes()
    world.transport.barrier()
    return {"before": before, "after": after}


def proportional_bytes() -> int:
    """Resident memory, with what several processes share counted in parts (PSS)."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell the proportional set size")


# ---- during a step -----------------------------------------------------------------------------

# By setting: the model as it is called, and what steps it.
Parts = tuple[nn.Module, Any]


def ddp(task: Task, options: dict[str, Any], views: bool = False) -> Parts:
    """DDP with a whole Adam."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(task.model, gradient_as_bucket_view=views)
    return model, torch.optim.Adam(model.parameters(), **options)


def ddp_views(task: Task, options: dict[str, Any]) -> Parts:
    """The same; gradients are views of its buckets."""
    return ddp(task, options, views=True)


def ddp_compiled(task: Task, options: dict[str, Any]) -> Parts:
    """DDP, compiled."""
    model, optimizer = ddp(task, options)
    return torch.compile(model, backend="aot_eager"), optimizer  # type: ignore[return-value]


def stage_one(task: Task, options: dict[str, Any]) -> Parts:
    """POS_Trainer that keeps gradients."""
    from kadril.sharded import POS_Trainer

    return task.model, POS_Trainer(task.model, torch.optim.Adam, options, stage=1)


def stage_two(task: Task, options: dict[str, Any]) -> Parts:
    """POS_Trainer that gives them away in hooks."""
    from kadril.sharded import POS_Trainer

    return task.model, POS_Trainer(task.model, torch.optim.Adam, options)


def compiled(task: Task, options: dict[str, Any], inner: str = "eager") -> Parts:
    """POS_Trainer whose gradients leave inside the compiled graph."""
    from kadril.sharded import POS_Trainer

    trainer = POS_Trainer(task.model, torch.optim.Adam, options)
    model = torch.compile(task.model, backend="kadril", options={"inner": inner})
    return model, trainer  # type: ignore[return-value]


def compiled_by_inductor(task: Task, options: dict[str, Any]) -> Parts:
    """The same, with graphs that are C++."""
    return compiled(task, options, "inductor")


TRACED: dict[str, Callable[[Task, dict[str, Any]], Parts]] = {
    "DDP": ddp,
    "DDP, views": ddp_views,
    "DDP, compiled": ddp_compiled,
    "kadril, stage 1": stage_one,
    "kadril, stage 2": stage_two,
    "kadril, compiled": compiled,
    "kadril, inductor": compiled_by_inductor,
}


def trace_step(world: kadril.World, setting: str) -> dict[str, Any]:
    """Measure the rise of memory in a forward and backward pass, and in all of one step."""
    options = {"lr": 1e-4, "fused": True}
    tiny = make_tiny()
    tiny_model, tiny_optimizer = TRACED[setting](tiny, options)
    tiny.loss(tiny_model).backward()  # type: ignore[no-untyped-call]
    tiny_optimizer.step()
    before = rank_bytes(world.size)
    task = make_stack(world.rank)
    model, optimizer = TRACED[setting](task, options)
    loss: list[torch.Tensor] = []

    def forward() -> None:
        loss.append(task.loss(model))

    def backward() -> None:
        loss.pop().backward()  # type: ignore[no-untyped-call]

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    def both() -> None:
        forward()
        backward()

    peaks = []
    for number in range(NUM_STEPS + 1):
        gc.collect()
        world.transport.barrier()
        peak = peak_growth(both)
        if number:  # in the first one things are compiled, and memory is made that stays
            peaks.append(peak)
        step()
    gc.collect()
    world.transport.barrier()
    calls = {"forward": forward, "backward": backward, "step and zero_grad": step}
    trace = trace_phases(calls, num_ranks=world.size, before=before)
    return {"peaks": peaks, "trace": dataclasses.asdict(trace)}
