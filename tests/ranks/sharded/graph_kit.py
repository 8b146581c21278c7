"""Models and plans for the tests of the graph pass.

Weights, inputs and factors are small integers, so that all sums are exact in any order: what a
compiled graph hands out has the bits of the plain backward pass.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from kadril.sharded.graph import OwnerPlan
from kadril.sharded.graph.owner_plan import owners_by_rule
from kadril.world import World

WIDTH = 6


class Tricky(nn.Module):
    """A tied weight, a frozen and an unused parameter, and gradients that are not memory of theirs.

    `shift` and `bias` get the very tensor that the graph gets as input, `spread` one of stride 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, 3, bias=False)  # registered first, used last
        self.first = nn.Linear(WIDTH, WIDTH)
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.tied.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.shift = nn.Parameter(torch.zeros(4, 3))
        self.bias = nn.Parameter(torch.zeros(4, 3))
        self.spread = nn.Parameter(torch.zeros(5, 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.first(x)) * self.scale
        return self.last(self.tied(x)) + (self.shift + self.bias), self.spread.sum()


class Broken(nn.Module):
    """Two graphs, with one weight in both of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.relu(self.first(x)))
        torch._dynamo.graph_break()
        return self.first(x)


def whole(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The model with small integers as weights, the same on all ranks."""
    model.to(dtype)
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            numbers = torch.arange(parameter.numel()) * 7 + seed * 5
            parameter.copy_((numbers % 5 - 2).reshape(parameter.shape))
    return model


def batch(rank: int, num_rows: int = 4, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Small integers, other ones on each rank."""
    numbers = torch.arange(num_rows * WIDTH) * 3 + rank * 11
    return (numbers % 7 - 3).reshape(num_rows, WIDTH).to(dtype)


def total(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A loss whose gradients are whole numbers, and not all the same."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = outputs[0].new_zeros(())
    for each in outputs:
        numbers = torch.arange(each.numel(), dtype=each.dtype) % 3 - 1
        loss = loss + (each * numbers.reshape(each.shape)).sum() + each.sum()
    return loss


def make_plan(model: nn.Module, world: World, **options: float) -> OwnerPlan:
    """Owners by the rule of the seed."""
    named = dict(model.named_parameters())
    return OwnerPlan(named.items(), owners_by_rule(named, world.size), world.transport, **options)


def reference(
    model: nn.Module, world: World, x: torch.Tensor, factor: int = 1
) -> dict[str, tuple[torch.Tensor | None, torch.Tensor | None]]:
    """This rank's gradient and the mean over ranks of each parameter, by plain means."""
    plain = copy.deepcopy(model)
    plain.zero_grad()
    (factor * total(plain(x))).backward()
    found: dict[str, tuple[torch.Tensor | None, torch.Tensor | None]] = {}
    for name, parameter in plain.named_parameters():
        own = parameter.grad
        mean = None
        if own is not None:
            mean = own.clone()
            world.transport.allreduce(mean, postscale=1 / world.size, name=name)
        found[name] = (own, mean)
    return found


def assert_gradients(
    model: nn.Module,
    plan: OwnerPlan,
    expected: dict[str, tuple[torch.Tensor | None, torch.Tensor | None]],
    *,
    is_partitioned: bool = True,
    num_passes: int = 1,
) -> None:
    """Owned gradients are the mean, others None or this rank's own."""
    for name, parameter in model.named_parameters():
        own, mean = expected[name]
        if own is None or mean is None:
            assert parameter.grad is None, f"{name} is not used"
        elif plan.owners[name] == plan.rank:
            assert parameter.grad is not None, f"{name} is this rank's"
            assert torch.equal(parameter.grad, num_passes * mean), name
        elif is_partitioned:
            assert parameter.grad is None, f"{name} is another rank's"
        else:
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, num_passes * own), name


class WatchingPlan(OwnerPlan):
    """Counts the bytes of the gradients that are alive when the next one comes."""

    def watch(self) -> WatchingPlan:
        self.seen: dict[str, tuple[StorageWeakRef, int]] = {}
        self.alive: list[int] = []
        return self

    def reduce_gradient(
        self, name: str, gradient: torch.Tensor, label: str, *, is_given: bool = False
    ) -> None:
        self.alive.append(
            sum(size for storage, size in self.seen.values() if not storage.expired())
        )
        storage = gradient.untyped_storage()
        self.seen[name] = (StorageWeakRef(storage), storage.nbytes())
        super().reduce_gradient(name, gradient, label, is_given=is_given)
