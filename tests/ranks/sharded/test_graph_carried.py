"""Gradients of compiled passes go the way of eager ones: no rank waits, and all of them add up.

With loss = sum_i <p_i, c_i> the gradient of p_i is c_i, as in `gradient_kit`. Two parameters are
large enough to be sent by themselves, from the memory of the graph; the others travel together.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gradient_kit import Pull, assert_same
from graph_kit import batch, total, whole
from inductor_kit import inductor
from sharded_kit import (
    OPTIMIZERS,
    add_up,
    make_parameters,
    mean,
    mean_of_step,
    one_process,
    plain,
    pull_of,
)
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from kadril.errors import MismatchError
from kadril.sharded import POS_Trainer
from kadril.sharded.graph import kadril_backend
from kadril.sharded.ownership.gradient_memory import raw_grad
from kadril.testing import ranks
from kadril.world import World

NAME, OPTIONS = OPTIMIZERS[2]
SHAPES = ((300_007,), (3, 5), (64_000,), (280_000,), (11,))
TRANSPORTS = ("shm", "c10d")

Backward = Callable[[Pull], None]


class Pulled(nn.Module):
    """Parameters whose gradients are what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(make_parameters(SHAPES))

    def forward(self, *pull: torch.Tensor | None) -> torch.Tensor:
        terms = [(p * c).sum() for p, c in zip(self.parts, pull, strict=True) if c is not None]
        return torch.stack(terms).sum()


def make(world: World) -> tuple[Pulled, POS_Trainer, Backward, Backward]:
    """A model and its trainer, and both ways to make a backward pass."""
    torch._dynamo.reset()
    model = Pulled()
    trainer = POS_Trainer(model, NAME, OPTIONS, world=world)
    run = torch.compile(model, backend=kadril_backend, options={"inner": "eager"})
    return (
        model,
        trainer,
        lambda pull: run(*pull).backward(),
        lambda pull: model(*pull).backward(),
    )


def expect(means: list[Pull]) -> list[torch.nn.Parameter]:
    return one_process(plain(NAME, OPTIONS), means, SHAPES)[0]


def is_given_back(model: nn.Module) -> bool:
    return all(raw_grad(parameter) is None for parameter in model.parameters())


@ranks(2, 3, timeout=110, patience=100.0)  # a rank waits while its peers compile
def test_a_rank_may_be_through_a_compiled_pass_before_another_begins(world: World) -> None:
    """Each reduction inside of the graph waited for the other ranks: here that was for ever."""
    model, trainer, compiled, _ = make(world)
    for step in range(3):
        for rank in range(world.size):
            if rank == world.rank:
                compiled(pull_of(rank, step, world.size, SHAPES))
                assert is_given_back(model)
            world.transport.barrier()
        trainer.step()
    means = [mean_of_step(step, world.size, shapes=SHAPES) for step in range(3)]
    assert_same(model.parameters(), expect(means))


@ranks(3)
def test_any_mix_of_passes_of_three_ranks_adds_up(world: World) -> None:
    add_up_any_mix(world)


@ranks(2, transports=TRANSPORTS)
def test_any_mix_of_compiled_and_eager_passes_adds_up(world: World) -> None:
    add_up_any_mix(world)


def add_up_any_mix(world: World) -> None:
    """Ranks make different numbers of passes, and one compiles what another runs eagerly."""
    dice = random.Random(11)
    model, trainer, *ways = make(world)
    means = []
    for step in range(6):
        passes: list[list[Pull]] = []
        for rank in range(world.size):
            passes.append([])
            for number in range(dice.choice((0, 1, 1, 2, 3))):
                pull = pull_of(rank, 10 * step + number, world.size, SHAPES)
                if dice.random() < 0.3:  # another graph, which some ranks run and others do not
                    pull[0] = pull[1] = None
                passes[-1].append(pull)
                way = dice.choice(ways)
                if rank == world.rank:
                    way(pull)
        if dice.random() < 0.3:
            trainer.allreduce_grads()
        trainer.step()
        means.append(mean([add_up(of_rank, SHAPES) for of_rank in passes]))
    assert_same(model.parameters(), expect(means))


@ranks(2, transports=TRANSPORTS)
def test_compiled_passes_may_be_dropped(world: World) -> None:
    """A drop takes all passes of each rank, compiled or not; what comes after it counts."""
    dice = random.Random(3)
    model, trainer, *ways = make(world)
    means = []
    for step in range(5):
        for rank in range(world.size):
            for number in range(dice.choice((1, 1, 2))):
                way = dice.choice(ways)
                if rank == world.rank:
                    way(pull_of(rank, 50 + 10 * step + number, world.size, SHAPES))
        trainer.zero_grad()
        for rank in range(world.size):
            way = dice.choice(ways)
            if rank == world.rank:
                way(pull_of(rank, step, world.size, SHAPES))
        trainer.step()
        means.append(mean_of_step(step, world.size, shapes=SHAPES))
    assert_same(model.parameters(), expect(means))


@ranks(2, transports=TRANSPORTS)
def test_a_rank_that_drops_compiled_passes_alone_is_named(world: World) -> None:
    """The peer has what was dropped in one sum with what counts. All can go on after it."""
    model, trainer, compiled, _ = make(world)
    compiled(pull_of(world.rank, 7, world.size, SHAPES))
    if world.rank == 1:
        trainer.zero_grad()
        compiled(pull_of(world.rank, 8, world.size, SHAPES))
    with pytest.raises(MismatchError, match=r"rank 1 has dropped .* rank 0 has not"):
        trainer.step()
    assert is_given_back(model)
    compiled(pull_of(world.rank, 0, world.size, SHAPES))
    trainer.step()
    assert_same(model.parameters(), expect([mean_of_step(0, world.size, shapes=SHAPES)]))


@ranks(2, transports=TRANSPORTS)
def test_a_group_is_added_between_compiled_passes(world: World) -> None:
    model, trainer, compiled, _ = make(world)
    late = nn.Parameter(torch.zeros(300_000))
    compiled(pull_of(world.rank, 0, world.size, SHAPES))
    trainer.add_param_group({"params": [late], "lr": 0.25})
    compiled(pull_of(world.rank, 1, world.size, SHAPES))
    (late * 2).sum().backward()
    trainer.step()
    pulls = [mean_of_step(step, world.size, shapes=SHAPES) for step in range(2)]
    assert_same(model.parameters(), expect([add_up(pulls, SHAPES)]))
    assert late.unique().numel() == 1
    assert late[0] < 0


@ranks(2)
def test_no_gradient_of_a_graph_outlives_its_round(world: World) -> None:
    """Sums lie in the memory of gradients until the step; then all of it is free."""
    _, trainer, compiled, _ = make(world)
    plan = trainer._graph_plan
    reduce = plan.reduce_gradient
    seen: list[StorageWeakRef] = []

    def note(name: str, gradient: torch.Tensor, label: str, *, is_given: bool) -> None:
        seen.append(StorageWeakRef(gradient.untyped_storage()))
        reduce(name, gradient, label, is_given=is_given)

    plan.reduce_gradient = note  # type: ignore[method-assign]
    for step in range(3):
        compiled(pull_of(world.rank, step, world.size, SHAPES))
        trainer.step()
        trainer.zero_grad()
        assert len(seen) == len(SHAPES) * (step + 1)
        assert all(storage.expired() for storage in seen)


@pytest.mark.shared_memory("a rank posts gradients to outboxes, and waits for nobody")
@ranks(2)
def test_sums_are_laid_into_gradients_of_a_graph(world: World) -> None:
    """A graph refers to a gradient while it gives it away: each sum took memory of its own once."""
    torch._dynamo.reset()
    model = nn.Linear(600, 500, bias=False)  # large enough to be sent by itself
    trainer = POS_Trainer(model, NAME, OPTIONS, world=world)
    run = torch.compile(model, backend=kadril_backend, options={"inner": "eager"})
    plan = trainer._graph_plan
    reduce = plan.reduce_gradient
    seen: set[int] = set()

    def note(name: str, gradient: torch.Tensor, label: str, *, is_given: bool) -> None:
        assert is_given
        seen.add(gradient.untyped_storage().data_ptr())
        reduce(name, gradient, label, is_given=is_given)

    plan.reduce_gradient = note  # type: ignore[method-assign]
    for rank in range(world.size):
        if rank == world.rank:
            run(torch.ones(3, 600)).sum().backward()
        world.transport.barrier()
    # The last rank finds what the other one has posted, and adds it up at once.
    buckets = [bucket for bucket in trainer.shards.buckets if bucket.has_gradients]
    sums = {bucket.gradients.untyped_storage().data_ptr() for bucket in buckets}
    assert world.rank == 0 or sums & seen
    trainer.step()


class Copied(torch.autograd.Function):
    """The identity, whose derivative makes a copy."""

    @staticmethod
    def forward(_: object, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient.clone()


class Entangled(nn.Module):
    """Large parameters whose gradients are read again: by a later node, as another one, by callers.

    With gradients g and h of its results that of `first` is g, which that of `second` is made of;
    those of `left` and `right` are one tensor, that of `direct` is h itself, and that of `copied` a
    copy of h, which a compiler may leave out.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        for name in ("first", "second", "left", "right", "direct", "copied"):
            self.register_parameter(name, nn.Parameter(torch.zeros(count)))

    def forward(self, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = (self.left + self.right) * 5
        first = (self.first + self.second * factor) * 3 + both
        return first, self.direct + Copied.apply(self.copied) + 0 * factor


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@ranks(2, timeout=110, patience=100.0)  # a rank waits while its peer compiles
def test_a_gradient_that_is_read_again_is_not_written_to(
    world: World, tmp_path: Path, inner: str
) -> None:
    """Sums are laid into gradients that a graph gives away, so it must give no others.

    Inductor leaves out copies of what has the same form, and the copy of a gradient that a graph
    was given became that gradient, which the graph gave away.
    """
    torch._dynamo.reset()
    count = 300_007
    model = Entangled(count)
    trainer = POS_Trainer(model, "sgd", {"lr": 1.0}, world=world)
    steps = torch.arange(count, dtype=torch.float32) % 7
    factor = steps + 1
    pulls = [(steps + rank, steps * 2 - rank) for rank in range(world.size)]
    given = [each.clone() for each in pulls[world.rank]]
    with inductor(tmp_path):
        run = torch.compile(model, backend=kadril_backend, options={"inner": inner})
        results = run(factor)
    for rank in range(world.size):  # the last one finds what others have posted
        if rank == world.rank:
            torch.autograd.backward(results, given)
        world.transport.barrier()
    assert all(map(torch.equal, given, pulls[world.rank]))
    trainer.step()
    # Sums of integers below 2 ** 24.
    expected = mean([[3 * g, 3 * g * factor, 5 * g, 5 * g, h, h] for g, h in pulls])
    assert_same(model.parameters(), [-each for each in expected if each is not None])


@pytest.mark.long  # inductor compiles for tens of seconds
@ranks(2, timeout=110, patience=100.0)  # a rank waits while its peer compiles
def test_inductor_leaves_memory_that_is_still_needed(world: World, tmp_path: Path) -> None:
    """Another gradient once took the place of one that its peers, far behind, had not read."""
    torch._dynamo.reset()
    model = whole(nn.Sequential(nn.Linear(6, 401), *(nn.Linear(401, 401) for _ in range(3))))
    twin = copy.deepcopy(model)
    trainers = [POS_Trainer(each, "sgd", {"lr": 1.0}, world=world) for each in (model, twin)]
    with inductor(tmp_path):
        run = torch.compile(model, backend="kadril")
        run(batch(0))  # all ranks compile at the same time
        for number in range(2):
            for rank in range(world.size):
                if rank == world.rank:
                    total(run(batch(rank + number))).backward()
                    total(twin(batch(rank + number))).backward()
                world.transport.barrier()
    for trainer in trainers:
        trainer.step()
    # Integers, and each sum is one of at most 2 * 4 * 2 * 18 * 802^3 < 2^41: exact in any order.
    assert_same(model.parameters(), twin.parameters())
    assert not torch.equal(model[1].weight, whole(copy.deepcopy(twin))[1].weight)
