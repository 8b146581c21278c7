"""Companions of an optimizer: schedulers, scalers, pickles, copies, checkpoints, closures."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from gradient_kit import assert_same, backward, combined
from training_kit import (
    all_ranks,
    assert_gradients,
    both_ways,
    make_parameters,
    momentum_sgd,
    one_process,
    pull_of,
)

import kadril.torch as hvd
from kadril.testing import ranks
from kadril.world import World


@ranks(1, 2)
@both_ways
def test_it_is_still_the_optimizer_it_was(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.5)
    wrapped = hvd.DistributedOptimizer(optimizer)
    assert wrapped is optimizer
    assert isinstance(wrapped, torch.optim.SGD)
    assert isinstance(wrapped, torch.optim.Optimizer)
    assert type(wrapped).__name__ == "SGD"
    assert "momentum: 0.5" in repr(wrapped)
    again = hvd.DistributedOptimizer(wrapped, op=hvd.Sum)
    backward(parameters, pull_of(world.rank))
    again.step()
    assert_gradients(parameters, combined(all_ranks()))


@ranks(1, 2)
@both_ways
def test_schedulers_hold_whenever_they_were_made(world: World) -> None:
    """A scheduler made before the wrapping used to drive an optimizer that nobody stepped."""
    hvd.init()
    for before in (True, False):
        parameters = make_parameters()
        optimizer = momentum_sgd(parameters)
        if before:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
        if not before:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        for step in range(3):
            assert optimizer.param_groups[0]["lr"] == 0.125 * 0.5**step
            optimizer.zero_grad()
            backward(parameters, pull_of(world.rank, step))
            optimizer.step()
            assert_gradients(parameters, combined(all_ranks(step)))
            scheduler.step()  # warns, which is an error here, where it missed a step


@ranks(2)
@both_ways
def test_schedulers_can_be_saved(world: World) -> None:
    """OneCycleLR and CyclicLR dragged the optimizer's unimportable class into their pickle."""
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters))
    for scheduler in (
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=10),
        torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 1.0),
    ):
        optimizer.step()
        scheduler.step()
        revived = pickle.loads(pickle.dumps(scheduler.state_dict()))  # noqa: S301
        assert revived["last_epoch"] == scheduler.last_epoch
        torch.save(scheduler.state_dict(), io.BytesIO())


@ranks(1, 2)
@both_ways
def test_step_hooks_run_once(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    optimizer.load_state_dict(optimizer.state_dict())  # torch patches `step` again here
    backward(parameters, pull_of(world.rank))
    optimizer.step()
    assert seen == ["pre", "post"]


@ranks(2)
@both_ways
def test_a_step_that_was_put_into_the_object_runs_inside(world: World) -> None:
    """Libraries patch `optimizer.step`; it would hide ours, and nothing would be reduced."""
    hvd.init()
    parameters = make_parameters()
    optimizer = momentum_sgd(parameters)
    plain, seen = optimizer.step, []

    def patched(*args: object, **kwargs: object) -> object:
        seen.append(1)
        return plain(*args, **kwargs)

    optimizer.step = patched  # type: ignore[method-assign]
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
    backward(parameters, pull_of(world.rank))
    optimizer.step()
    assert seen == [1]
    assert_same(parameters, one_process(momentum_sgd, [combined(all_ranks())]))


@ranks(1, 2, 3)
@both_ways
def test_state_goes_through_a_checkpoint(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
    backward(parameters, pull_of(world.rank, 0))
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    weights = [p.detach().clone() for p in parameters]
    parameters = make_parameters()
    with torch.no_grad():
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.copy_(weight)
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file))
    backward(parameters, pull_of(world.rank, 1))
    optimizer.step()
    sums = [combined(all_ranks(0)), combined(all_ranks(1))]
    assert_same(parameters, one_process(momentum_sgd, sums))


@ranks(1, 2)
@both_ways
def test_it_can_be_copied_and_pickled(world: World) -> None:
    hvd.init()
    for copied in (copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))):  # noqa: S301
        parameters = make_parameters()
        names = [(f"layer.{place}", p) for place, p in enumerate(parameters)]
        optimizer = hvd.DistributedOptimizer(
            momentum_sgd(parameters), names, op=hvd.Sum, groups=[parameters[:2]]
        )
        backward(parameters, pull_of(world.rank, 0))
        optimizer.step()
        twin = copied(optimizer)
        assert isinstance(twin, torch.optim.SGD)
        twins = twin.param_groups[0]["params"]
        assert all(a is not b for a, b in zip(twins, parameters, strict=True))
        for each, its in ((optimizer, parameters), (twin, twins)):  # both go on, by themselves
            each.zero_grad()
            backward(its, pull_of(world.rank, 1))
            each.step()
        sums = [combined(all_ranks(0)), combined(all_ranks(1))]
        assert_same(parameters, one_process(momentum_sgd, sums))
        assert_same(twins, parameters)


def scaled_steps(
    parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, rank: int, by_hand: bool
) -> float:
    """Four steps; the second overflows on rank 1 only."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(4):
        optimizer.zero_grad()
        pull = pull_of(rank, step)
        if step == 1 and rank == 1:
            pull[4] = torch.full_like(parameters[4], torch.inf)
        terms = [(p * c).sum() for p, c in zip(parameters, pull, strict=True) if c is not None]
        scaler.scale(sum(terms[1:], terms[0])).backward()
        if by_hand:  # as Horovod's documentation has it
            optimizer.synchronize()  # type: ignore[attr-defined]
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():  # type: ignore[attr-defined]
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


@ranks(2, 3)
@both_ways
def test_a_grad_scaler_needs_no_ceremony(world: World) -> None:
    """A scaler unscales what is in flight, and skips a step that others take, unless it waits."""
    hvd.init()
    for by_hand in (True, False):
        for fused in (False, True):
            parameters = make_parameters(dtype=torch.float32)
            optimizer = torch.optim.SGD(parameters, lr=0.125, fused=fused)
            optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
            scale = scaled_steps(parameters, optimizer, world.rank, by_hand)
            assert scale == 512.0  # one step overflowed, on every rank
            expected = one_process(
                lambda p: torch.optim.SGD(p, lr=0.125),
                [combined(all_ranks(step)) for step in (0, 2, 3)],
                dtype=torch.float32,
            )
            assert_same(parameters, expected)


@ranks(2)
@both_ways
def test_a_grad_scaler_with_a_dynamic_graph(world: World) -> None:
    """Gradients absent here are not in flight yet; the scaler must not decide without them."""
    hvd.init()
    parameters = make_parameters(((3,), (4,)), torch.float32)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=hvd.Sum)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1000)
    before = [p.detach().clone() for p in parameters]
    optimizer.zero_grad()
    factor = torch.inf if world.rank == 0 else 1.0
    scaler.scale((parameters[world.rank] * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 1.0
    assert_same(parameters, before)  # neither rank has stepped


@ranks(1, 2, 4)
@both_ways
def test_lbfgs_steps_as_one_process(world: World) -> None:
    """The line search looks at the loss: ranks part unless loss and gradients are everyone's.

    Data are small integers and sizes powers of two: means over ranks are exact, so every rank does
    the same arithmetic as one process; only sums within a rank are in another order.
    """
    hvd.init()
    for line_search in (None, "strong_wolfe"):
        part = slice(world.rank * 4 // world.size, (world.rank + 1) * 4 // world.size)
        weight, losses = lbfgs(part, line_search, distributed=True)
        alone, losses_alone = lbfgs(slice(None), line_search, distributed=False)
        # 16 iterations on 3 numbers of magnitude 1: rounding of 2^-53 each, times a condition
        # number below 100.
        bound = 16 * 100 * 3 * 2.0**-53
        assert torch.allclose(weight, alone, rtol=0, atol=bound)
        assert losses == pytest.approx(losses_alone, abs=bound)
        gathered = hvd.allgather(weight[None])
        assert_same(gathered, [gathered[0]] * world.size)  # ranks have the same bits


def lbfgs(
    part: slice, line_search: str | None, distributed: bool
) -> tuple[torch.Tensor, list[float]]:
    """Weight and losses of two steps on a part of the rows."""
    rows = (torch.arange(4 * 3, dtype=torch.float64).reshape(4, 3) * 7 % 5 - 2)[part]
    target = torch.tensor([1.0, -2.0, 3.0, 0.0], dtype=torch.float64)[part]
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.LBFGS([weight], line_search_fn=line_search, max_iter=8)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (rows @ weight - target).square().mean()
        loss.backward()
        return loss.detach()

    losses = [float(optimizer.step(closure)) for _ in range(2)]
    return weight.detach(), losses


@ranks(2)
@both_ways
def test_closures_of_other_optimizers(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
    for step in range(2):

        def closure(step=step) -> float:  # noqa: ANN001
            optimizer.zero_grad()
            backward(parameters, pull_of(world.rank, step))
            return float(world.rank + 1)

        assert optimizer.step(closure) == 3.0  # the loss is summed as the gradients are
    sums = [combined(all_ranks(step)) for step in range(2)]
    assert_same(parameters, one_process(momentum_sgd, sums))


@ranks(2)
@both_ways
def test_a_compiled_model(world: World) -> None:
    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
    compiled = torch.compile(model, backend="aot_eager")
    rows = torch.ones(2, 4)
    for _ in range(2):
        optimizer.zero_grad()
        compiled(rows * (world.rank + 1)).sum().backward()
        optimizer.step()
    reference = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(2):
        reference.zero_grad()
        (plain(rows).sum() + plain(rows * 2).sum()).backward()
        reference.step()
    assert_same(model.parameters(), plain.parameters())
