"""The ways to train with Adam on several ranks.

setting               optimizer state          gradients are added up by
alone                 whole on each rank       nobody: as if communication cost nothing
alone, heap kept      whole on each rank       nobody; the allocator keeps what is freed
kadril                shared out               POS_Trainer, stage 2
kadril, stage 1       shared out               POS_Trainer, stage 1
kadril, compiled      shared out               POS_Trainer, inside compiled graphs run node by node
kadril, inductor      shared out               the same, with graphs that are C++
kadril, optimizer     shared out               ShardedOptimizer with reduce_gradients
kadril, whole         whole on each rank       kadril.torch.DistributedOptimizer
DDP                   whole on each rank       DistributedDataParallel on gloo
DDP, views            whole on each rank       the same, with gradient_as_bucket_view
DDP + ZeRO            shared out               the same, and torch's ZeroRedundancyOptimizer
DDP + ZeRO, views     shared out               with parameters_as_bucket_view
FSDP2                 shared out               fully_shard on gloo, each layer
DeepSpeed ZeRO-2      shared out               deepspeed with stage 2, where it is installed

Each imports what it needs when it is made: memory is measured with one of them in a process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from models import Task
from torch import nn

__all__ = ["SETTINGS", "make_step"]

LEARNING_RATE = 1e-4


def alone(task: Task, options: dict[str, Any]) -> Callable[[], None]:
    """No communication."""
    return stepping(task, task.model, torch.optim.Adam(task.model.parameters(), **options))


def kadril(task: Task, options: dict[str, Any], stage: int = 2) -> Callable[[], None]:
    """POS_Trainer."""
    from kadril.sharded import POS_Trainer

    trainer = POS_Trainer(task.model, torch.optim.Adam, options, stage=stage)
    return stepping(task, task.model, trainer)


def kadril_one(task: Task, options: dict[str, Any]) -> Callable[[], None]:
    """POS_Trainer that keeps gradients."""
    return kadril(task, options, stage=1)


def kadril_compiled(
    task: Task, options: dict[str, Any], inner: str = "eager"
) -> Callable[[], None]:
    """POS_Trainer whose gradients leave inside the compiled graph."""
    from kadril.sharded import POS_Trainer

    trainer = POS_Trainer(task.model, torch.optim.Adam, options)
    model = torch.compile(task.model, backend="kadril", options={"inner": inner})
    return stepping(task, model, trainer)  # type: ignore[arg-type]


def kadril_inductor(task: Task, options: dict[str, Any]) -> Callable[[], None]:
    """The same, with graphs that are C++."""
    return kadril_compiled(task, options, "inductor")


def kadril_optimizer(task: Task, options: dict[str, Any]) -> Callable[[], None]:
    """ShardedOptimizer."""
    from kadril.sharded import ShardedOptimizer

    optimizer = ShardedOptimizer(
        task.model.parameters(), torch.optim.Adam, reduce_gradients=True, **options
    )
    return stepping(task, task.model, optimizer)


def kadril_whole(task: Task, options: dict[str, Any]) -> Callable[[], None]:
    """DistributedOptimizer, in the words of Horovod."""
    import kadril.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(task.model.parameters(), **options),
        named_parameters=task.model.named_parameters(),
    )
    return stepping(task, task.model, optimizer)


def ddp(task: Task, options: dict[str, Any], views: bool = False) -> Callable[[], None]:
    """DDP with a whole Adam."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(task.model, gradient_as_bucket_view=views)
    return stepping(task, model, torch.optim.Adam(model.parameters(), **options))


def ddp_views(task: Task, options: dict[str, Any]) -> Callable[[], None]:
    """The same, with gradients in its buckets."""
    return ddp(task, options, views=True)


def zero(task: Task, options: dict[str, Any], views: bool = False) -> Callable[[], None]:
    """DDP with torch's ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(task.model, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, parameters_as_bucket_view=views, **options
    )
    return stepping(task, model, optimizer)


def zero_views(task: Task, options: dict[str, Any]) -> Callable[[], None]:
    """The same, with its parameters in buckets."""
    return zero(task, options, views=True)


def fsdp(task: Task, options: dict[str, Any]) -> Callable[[], None]:
    """FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    layers = getattr(task.model, "layers", task.model)
    for layer in layers:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(task.model, mesh=mesh)
    return stepping(task, task.model, torch.optim.Adam(task.model.parameters(), **options))


def deepspeed(task: Task, options: dict[str, Any]) -> Callable[[], None]:
    """DeepSpeed, stage 2, on the same process group."""
    import torch.distributed as dist

    # It asks for these, and looks for accelerators where none is named.
    rank = str(dist.get_rank())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, DS_ACCELERATOR="cpu")
    os.environ["WORLD_SIZE"] = str(dist.get_world_size())
    import deepspeed as installed

    engine, *_ = installed.initialize(
        model=task.model,
        optimizer=torch.optim.Adam(task.model.parameters(), **options),
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
        },
    )

    def step() -> None:
        engine.backward(task.loss(engine))
        engine.step()

    return step


def stepping(task: Task, model: nn.Module, optimizer: Any) -> Callable[[], None]:
    """Forward, backward, update, zero_grad."""

    def step() -> None:
        task.loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


SETTINGS: dict[str, Callable[[Task, dict[str, Any]], Callable[[], None]]] = {
    "alone": alone,
    "alone, heap kept": alone,
    "kadril": kadril,
    "kadril, stage 1": kadril_one,
    "kadril, compiled": kadril_compiled,
    "kadril, inductor": kadril_inductor,
    "kadril, optimizer": kadril_optimizer,
    "kadril, whole": kadril_whole,
    "DDP": ddp,
    "DDP, views": ddp_views,
    "DDP + ZeRO": zero,
    "DDP + ZeRO, views": zero_views,
    "FSDP2": fsdp,
    "DeepSpeed ZeRO-2": deepspeed,
}


def make_step(setting: str, task: Task, fused: bool) -> Callable[[], None]:
    """A training step in a setting."""
    options: dict[str, Any] = {"lr": LEARNING_RATE}
    if fused:
        options["fused"] = True
    return SETTINGS[setting](task, options)
