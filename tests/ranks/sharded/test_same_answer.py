"""One process, DistributedDataParallel and every stage of the trainer train alike, to the last bit.

With two ranks all of them have the same sums: a + b is b + a, and halves are exact, before the sum
or after it. One process with the whole batch adds up its rows in another order; there the gradients
are sums of whole numbers, which are exact in any.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from dcp_kit import process_group
from gradient_kit import assert_same
from sharded_kit import OPTIMIZERS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kadril.sharded import POS_Trainer
from kadril.sharded.ownership.gradient_memory import raw_grad
from kadril.testing import ranks
from kadril.world import World

NUM_STEPS = 50
NUM_ROWS = 4  # of each rank
NUM_FEATURES = 6

Loss = Callable[[Callable[..., torch.Tensor]], torch.Tensor]
Step = Callable[[Loss], None]


def plain(model: nn.Module, forward: nn.Module, name: str, options: dict[str, Any]) -> Step:
    """Steps of the plain optimizer, with whatever `forward` makes of gradients."""
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)

    def step(loss: Loss) -> None:
        optimizer.zero_grad()
        loss(forward).backward()
        optimizer.step()

    return step


def sharded(
    model: nn.Module,
    world: World,
    name: str,
    options: dict[str, Any],
    *,
    stage: int,
    compiles: bool = False,
) -> Step:
    """Steps of the trainer; compiled, with the reductions in the backward graph."""
    trainer = POS_Trainer(model, getattr(torch.optim, name), options, stage=stage, world=world)
    forward: Callable[..., torch.Tensor] = model
    if compiles:
        torch._dynamo.reset()  # else models of earlier tests count against torch's limit
        forward = torch.compile(model, backend="kadril", options={"inner": "eager"})

    def step(loss: Loss) -> None:
        trainer.zero_grad()
        loss(forward).backward()
        assert (raw_grad(model[0].weight) is None) == (stage == 2)
        assert trainer._registration.dropped == set(trainer.names if compiles else ())
        trainer.step()

    return step


WAYS: list[dict[str, Any]] = [{"stage": 1}, {"stage": 2}, {"stage": 2, "compiles": True}]


@ranks(2)
def test_a_network_has_the_bits_of_ddp(world: World, tmp_path: Path) -> None:
    """Random numbers, float32: whatever is rounded is rounded alike."""
    generator = torch.Generator().manual_seed(world.rank)
    x = torch.randn(NUM_STEPS, NUM_ROWS, NUM_FEATURES, generator=generator)

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(NUM_FEATURES, 33), nn.Tanh(), nn.Linear(33, 2))

    def train(model: nn.Module, step: Step) -> nn.Module:
        for rows in x:
            step(lambda forward, rows=rows: (forward(rows) - 1).square().mean())
        return model

    with process_group(world, tmp_path):
        for name, options in OPTIMIZERS:
            # Of Adam and Adagrad the fused kernels round otherwise, so ask for the same.
            for fused in (True, False):
                model = make()
                chosen = {**options, "fused": fused}
                expected = train(model, plain(model, DistributedDataParallel(model), name, chosen))
                for how in WAYS if fused else WAYS[:2]:
                    model = make()
                    train(model, sharded(model, world, name, chosen, **how))
                    assert_same(model.parameters(), expected.parameters())


class Margins:
    """Classes to tell apart by the hinge loss: mean of max(0, 1 - y (W x + b)), y = -1 or 1.

    The gradient of W is the sum of -y x over the rows that are not right by a margin of 1, and over
    a power of two. With whole numbers as x that is exact in any order. It depends on W by which
    rows these are, so what is learned depends on every step before.
    """

    NUM_CLASSES = 16

    def __init__(self, num_rows: int) -> None:
        numbers = torch.arange(NUM_STEPS * num_rows * NUM_FEATURES)
        shape = (NUM_STEPS, num_rows, NUM_FEATURES)
        self.x = (numbers * 5 % 17 * 3 % 7 - 3).reshape(shape).double()
        torch.manual_seed(1)
        truth = torch.randn(NUM_FEATURES, self.NUM_CLASSES, dtype=torch.float64)
        self.y = torch.where(self.x @ truth > 0, 1.0, -1.0).double()
        self.largest = 0.0
        self.nearest = float("inf")
        self.losses: list[float] = []

    def make(self) -> nn.Module:
        """Weights that are not round, so that no row comes near the edge by design."""
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(NUM_FEATURES, self.NUM_CLASSES)).double()

    def train(self, model: nn.Module, step: Step, rows: slice) -> nn.Module:
        """Train with some rows of each step."""
        for x, y in zip(self.x[:, rows], self.y[:, rows], strict=True):
            weights = nn.utils.parameters_to_vector(model.parameters())
            self.largest = max(self.largest, weights.abs().max().item())
            step(lambda forward, x=x, y=y: self.loss(1 - y * forward(x)))
        return model

    def loss(self, lacking: torch.Tensor) -> torch.Tensor:
        self.nearest = min(self.nearest, lacking.abs().min().item())
        loss = lacking.relu().mean()
        self.losses.append(loss.item())
        return loss


@ranks(2)
def test_every_way_has_the_bits_of_one_process_with_the_whole_batch(
    world: World, tmp_path: Path
) -> None:
    whole = slice(None)
    own = slice(world.rank * NUM_ROWS, (world.rank + 1) * NUM_ROWS)
    with process_group(world, tmp_path):
        for name, options in OPTIMIZERS:
            task = Margins(world.size * NUM_ROWS)
            model = task.make()
            expected = task.train(model, plain(model, model, name, options), whole)
            # Of 6 products and 7 additions none is over 2^9, so each is off by at most 2^-44: all
            # ways agree on a row that is further from the edge than twice 13 * 2^-44.
            assert task.largest < 2**4
            assert task.nearest > 2.0**-39
            assert sum(task.losses[-5:]) < sum(task.losses[:5]) / 2
            model = task.make()
            task.train(model, plain(model, DistributedDataParallel(model), name, options), own)
            assert_same(model.parameters(), expected.parameters())
            for how in WAYS:
                model = task.make()
                task.train(model, sharded(model, world, name, options, **how), own)
                assert_same(model.parameters(), expected.parameters())
