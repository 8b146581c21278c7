"""The ways to train a model on several ranks: who adds up the gradients, and how.

setting               gradients are added up by
alone                 nobody: each rank trains by itself, which is what communication costs
                      nothing would look like
alone, heap kept      the same, where the allocator keeps what is freed, as kadril.init() has it
meeting               nobody, but ranks wait for each other once a step
least                 nobody, but each step adds up as many bytes, which lie in shared memory
                      already, without a copy: what no reduction of gradients can do without
kadril                kadril.torch.DistributedOptimizer
DDP                   DistributedDataParallel on gloo, as it comes
DDP static            with static_graph
DDP views             with gradient_as_bucket_view
DDP views static      with both

Those of kadril, "meeting" and "least" have the allocator keep what is freed too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch
from models import Chain, make_batches, make_mlp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import kadril
import kadril.torch as hvd

__all__ = ["ALONE", "KADRIL", "KEEPING", "SETTINGS", "Trainer", "make_trainer"]

ALONE, KEPT, MEETING, LEAST = "alone", "alone, heap kept", "meeting", "least"
KADRIL = "kadril"
DDP_OPTIONS: dict[str, dict[str, Any]] = {
    "DDP": {},
    "DDP static": {"static_graph": True},
    "DDP views": {"gradient_as_bucket_view": True},
    "DDP views static": {"gradient_as_bucket_view": True, "static_graph": True},
}

# By workload.
SETTINGS = {
    "mlp": (ALONE, KEPT, MEETING, LEAST, KADRIL, *DDP_OPTIONS),
    "chain": (ALONE, KADRIL, *DDP_OPTIONS),
}

# As `kadril.init()` does; the others run as they would without kadril.
KEEPING = (KEPT, MEETING, LEAST, KADRIL)

LEARNING_RATE = 0.1


class Trainer:
    """One model in one setting.

    Attributes:
        name: of the setting.
        losses: of all steps of this rank.
    """

    def __init__(self, name: str, model: nn.Module) -> None:
        self.name = name
        self.losses: list[torch.Tensor] = []
        self._bare = model
        self._model = (
            DistributedDataParallel(model, **DDP_OPTIONS[name]) if name in DDP_OPTIONS else model
        )
        self._optimizer: Any = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)
        if name == KADRIL:
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            named = model.named_parameters()
            self._optimizer = hvd.DistributedOptimizer(self._optimizer, named_parameters=named)
        self._meet = self._make_meeting()

    def _make_meeting(self) -> Callable[[], None]:
        """Return what a rank does for the others between backward pass and update."""
        world = kadril.current()
        if self.name == MEETING:
            return world.transport.barrier
        if self.name == LEAST:
            num_numbers = sum(parameter.numel() for parameter in self._bare.parameters())
            numbers = world.shared_empty(num_numbers).zero_()
            return lambda: world.transport.allreduce(numbers, postscale=1 / world.size)
        return lambda: None

    def train(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Forward, backward, reduction, update, zero_grad."""
        images, labels = next(batches)
        loss = cross_entropy(self._model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._meet()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.losses.append(loss.detach())

    def differentiate(self, x: torch.Tensor) -> None:
        """All of a step but the update: zero_grad, forward, backward, reduction."""
        self._optimizer.zero_grad()
        loss = self._model(x)
        loss.backward()
        if self.name == KADRIL:
            self._optimizer.synchronize()
        self.losses.append(loss.detach())

    def digest(self) -> str:
        """A hash over the bits of all parameters, and of the last gradients where there are any."""
        bits = hashlib.sha256()
        for parameter in self._bare.parameters():
            bits.update(parameter.detach().numpy().tobytes())
            if parameter.grad is not None:
                bits.update(parameter.grad.numpy().tobytes())
        return bits.hexdigest()[:16]


def make_trainer(workload: str, name: str) -> tuple[Trainer, Callable[[], None], int]:
    """One setting: its trainer, its step, and how many of them are timed together.

    Args:
        workload: "mlp" or "chain".
        name: of the setting.
    """
    if workload == "mlp":
        trainer = Trainer(name, make_mlp())
        batches = cycle(make_batches(hvd.rank()))
        return trainer, lambda: trainer.train(batches), 4
    trainer = Trainer(name, Chain())
    x = torch.randn(1000, generator=torch.Generator().manual_seed(hvd.rank()))
    return trainer, lambda: trainer.differentiate(x), 8
