"""Parameters whose gradients a test chooses, and what one process would make of them.

A trainer has the bits of one process that was given the mean of the gradients (`gradient_kit`).
Means are exact where the number of ranks is a power of two; for three ranks gradients are
multiples of three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from gradient_kit import Pull, backward, combined, patterns, step_with

from kadril.sharded import POS_Trainer
from kadril.world import World

# Large ones and several that share a bucket, 0-dim, empty, and lengths that no number of ranks
# divides.
SHAPES: tuple[tuple[int, ...], ...] = ((3,), (2, 5), (), (0,), (300_007,), (4, 1, 3), (1021,))

# Class and options; numbers need not be exact, since every step is done in the same way.
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.125}),
    ("SGD", {"lr": 0.125, "momentum": 0.5, "weight_decay": 0.25, "nesterov": True}),
    ("Adam", {"lr": 0.1}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}),
    ("Adagrad", {"lr": 0.1}),
]

# Those of torch's that have no fused kernel.
OTHER_OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("RMSprop", {"lr": 0.1, "momentum": 0.5, "centered": True}),
    ("NAdam", {"lr": 0.1}),
    ("RAdam", {"lr": 0.1}),
    ("Adamax", {"lr": 0.1}),
    ("Adadelta", {}),
    ("Rprop", {"lr": 0.1}),
    ("ASGD", {"lr": 0.1}),
    ("Adafactor", {"lr": 0.1}),
]


def make_parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32
) -> list[torch.nn.Parameter]:
    """The same small integers on every rank."""
    return [torch.nn.Parameter(each) for each in patterns(shapes, 0, dtype)]


def zeros(shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[torch.nn.Parameter]:
    """Parameters to load into."""
    return [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]


def named(parameters: Iterable[torch.nn.Parameter]) -> dict[str, torch.nn.Parameter]:
    """Parameters by the names p0, p1, ..."""
    return {f"p{place}": each for place, each in enumerate(parameters)}


def pull_of(
    rank: int,
    step: int,
    size: int,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: torch.dtype = torch.float32,
) -> Pull:
    """The gradients that one rank has in one step; their mean over the ranks is exact."""
    factor = 3 if size == 3 else 1
    return [each * factor for each in patterns(shapes, 3 * rank + 17 * step, dtype)]


def add_up(passes: Sequence[Pull], shapes: Sequence[tuple[int, ...]] = SHAPES) -> Pull:
    """The sums of the gradients of several passes, where there are any."""
    sums: Pull = [None] * len(shapes)
    for pull in passes:
        for place, each in enumerate(pull):
            before = sums[place]
            if each is not None:
                sums[place] = each if before is None else before + each
    return sums


def mean(pulls: Sequence[Pull]) -> Pull:
    """Return the mean over all ranks where any has a gradient, zeros from those that have none."""
    return combined(pulls, len(pulls))


def mean_of_step(step: int, size: int, **kind: Any) -> Pull:
    """The mean of `pull_of` over all ranks."""
    return mean([pull_of(rank, step, size, **kind) for rank in range(size)])


def one_process(
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    gradients: Sequence[Pull],
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    """Parameters and optimizer after a plain optimizer took a step with each list of gradients."""
    parameters = make_parameters(shapes, dtype)
    optimizer = make(parameters)
    step_with(optimizer, parameters, gradients)
    return parameters, optimizer


def trained_alone(
    name: str, options: dict[str, Any], num_steps: int, size: int, **kind: Any
) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    """Parameters and optimizer of one process after the steps of `train` on `size` ranks."""
    means = [mean_of_step(step, size, **kind) for step in range(num_steps)]
    return one_process(plain(name, options), means, **kind)


def plain(name: str, options: dict[str, Any]) -> Callable[..., torch.optim.Optimizer]:
    """The optimizer of torch that a trainer uses by that name."""
    fused = {"fused": True} if name in ("SGD", "Adam", "AdamW", "Adagrad") else {}
    return lambda parameters: getattr(torch.optim, name)(parameters, **{**fused, **options})


def train(
    trainer: POS_Trainer, parameters: list[torch.nn.Parameter], steps: Iterable[int], **kind: Any
) -> None:
    """One pass and one step for each number."""
    for step in steps:
        trainer.zero_grad()
        backward(parameters, pull_of(trainer.rank, step, trainer.size, **kind))
        trainer.step()


class SmallerWorld:
    """The first ranks of a world, as far as a trainer asks; collective over the whole world.

    Attributes:
        is_member: whether this rank belongs to it.
    """

    def __init__(self, world: World, size: int) -> None:
        self._world = world
        self.is_member = world.rank < size
        transport = world.transport.split(0 if self.is_member else None)
        if transport is not None:
            self.transport = transport
            self.rank = transport.rank
            self.size = transport.size

    def check_usable(self, operation: str) -> None:
        self._world.check_usable(operation)

    def on_close(self, closer: Callable[[], None]) -> None:
        self._world.on_close(closer)
