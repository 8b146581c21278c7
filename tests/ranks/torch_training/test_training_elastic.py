"""Elastic training in a world where nothing is lost: state, sampler, and starting over."""

from __future__ import annotations

import pytest
import torch
from gradient_kit import assert_same, backward
from training_kit import make_parameters, momentum_sgd, pull_of

import kadril.torch as hvd
from kadril.errors import MismatchError, PeerLost, Stalled, StateError, UnsupportedError
from kadril.sharded import POS_Trainer, ShardedOptimizer
from kadril.testing import ranks
from kadril.torch import elastic
from kadril.world import World


@ranks(1, 2, 3)
def test_values_are_saved_restored_and_brought_to_all(world: World) -> None:
    hvd.init()
    state = elastic.ObjectState(epoch=world.rank, best={"loss": [world.rank]})
    state.sync()
    assert (state.epoch, state.best) == (0, {"loss": [0]})
    state.epoch = 5
    state.best["loss"].append(world.rank)  # a change within a value is undone too
    state.restore()
    assert (state.epoch, state.best) == (0, {"loss": [0]})
    state.epoch = 7
    state.save()
    state.epoch = 8
    state.restore()
    assert state.epoch == 7


@ranks(1, 2, 3)
def test_models_and_optimizers_are_saved_restored_and_brought_to_all(world: World) -> None:
    hvd.init()
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(world.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5 + world.rank, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = elastic.TorchState(model, optimizer, batch=world.rank)
    assert state.model is model
    assert state.optimizer is optimizer
    state.sync()
    assert not any(p.any() for p in model.parameters())
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert state.batch == 0
    for batch in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.batch = batch + 1
        if batch == 0:
            state.commit()
            saved = [p.detach().clone() for p in model.parameters()]
    assert state.batch == 2
    state.restore()
    assert state.batch == 1
    assert_same(model.parameters(), saved)
    assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], torch.ones(2, 2))
    other = torch.nn.Linear(2, 2)
    state.model = other
    state.restore()
    assert state.model is other


@ranks(1, 2, 3)
def test_updates_of_hosts_interrupt_all_ranks_at_once(world: World) -> None:
    hvd.init()
    state = elastic.ObjectState(batch=0)
    state.commit()
    result = elastic.HostUpdateResult
    cases = [
        ([result.added], False),
        ([result.removed], True),
        ([result.removed, result.added], False),
    ]
    for number, (updates, skips) in enumerate(cases):
        if world.rank == 0:  # only rank 0 hears of it
            for update in updates:
                state.on_hosts_updated(10 * number + 1 + update, update)
        with pytest.raises(elastic.HostsUpdatedInterrupt) as caught:
            state.commit()
        assert caught.value.skip_sync is skips
        state.commit()  # heard once
    if world.rank == 0:
        state.on_hosts_updated(1, result.added)  # older than what is known
    state.check_host_updates()


@ranks(1, 2, 3)
def test_training_goes_on_after_hosts_were_updated(world: World) -> None:
    """The function is called again, with the state it had; callbacks hear of it."""
    hvd.init()
    state = elastic.ObjectState(batch=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    calls: list[int] = []

    @elastic.run
    def train(state: elastic.ObjectState, last: int, *, factor: int) -> int:
        calls.append(state.batch)
        while state.batch < last:
            state.batch += 1
            total = hvd.allreduce(torch.tensor(float(state.batch)), name="batch", op=hvd.Sum)
            assert total == state.batch * hvd.size()
            if state.batch == 3 and world.rank == 0:
                state.on_hosts_updated(1.0, elastic.HostUpdateResult.added)
            state.commit()
        return factor * state.batch

    assert train(state, 6, factor=10) == 60
    assert calls == [0, 3]
    assert resets == [world.size]


@ranks(1, 2)
def test_training_goes_back_after_a_rank_was_lost(world: World) -> None:
    hvd.init()
    for error in (PeerLost("gone", rank=1), Stalled("late", rank=1)):
        parameters = make_parameters()
        optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
        state = elastic.TorchState(optimizer=optimizer, step=0, values=list(parameters))
        started: list[int] = []

        @elastic.run
        def train(
            state: elastic.TorchState,
            optimizer: torch.optim.Optimizer,
            started: list[int],
            error: Exception,
        ) -> None:
            parameters = optimizer.param_groups[0]["params"]
            started.append(state.step)
            while state.step < 4:
                optimizer.zero_grad()
                backward(parameters, pull_of(world.rank, state.step))
                optimizer.step()
                state.step += 1
                if state.step == 2:
                    state.commit()
                if state.step == 3 and len(started) == 1:
                    raise error

        train(state, optimizer, started, error)
        assert started == [0, 2]
        assert optimizer.state_dict()["state"][0]["momentum_buffer"].shape == (3,)


@ranks(1, 2)
def test_a_rank_is_lost_while_callbacks_of_a_reset_run(world: World) -> None:
    """A callback with a collective raised out of `run`, and ended all survivors."""
    hvd.init()
    state = elastic.ObjectState(step=0)
    resets: list[int] = []

    def scale() -> None:
        resets.append(state.step)
        if len(resets) == 1:
            raise PeerLost("gone", rank=1)

    state.register_reset_callbacks([scale])

    @elastic.run
    def train(state: elastic.ObjectState) -> None:
        state.step += 1
        if state.step == 1:
            state.on_hosts_updated(1.0)
        state.commit()

    train(state)
    assert resets == [1, 1]
    assert state.step == 2


@ranks(1, 2)
def test_errors_of_the_program_are_not_tried_again(world: World) -> None:
    """A mismatch looked like a lost rank, and came back for ever."""
    hvd.init()
    for error in (MismatchError("shapes"), ValueError("bad"), StateError("other")):
        calls: list[int] = []

        @elastic.run
        def train(state: elastic.ObjectState, calls: list[int], error: Exception) -> None:
            calls.append(1)
            raise error

        with pytest.raises(type(error)):
            train(elastic.ObjectState(batch=0), calls, error)
        assert calls == [1]


@ranks(1, 2)
def test_a_failure_that_the_program_has_made_up(world: World) -> None:
    """Scripts for Horovod try their recovery so: by the error it has for all that is lost."""
    hvd.init()
    started: list[int] = []
    pulls = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(pulls), op=hvd.Sum)

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        started.append(state.step)
        while state.step < 3:
            backward(pulls, pull_of(world.rank, state.step))
            if state.step == 2 and len(started) == 1:
                raise hvd.HorovodInternalError("made up")
            optimizer.step()
            optimizer.zero_grad()
            state.step += 1
            if state.step == 1:
                state.commit()

    train(elastic.TorchState(optimizer=optimizer, step=0))
    assert started == [0, 1]


@ranks(1, 2, 3, 4)
def test_a_sampler_divides_what_is_left(world: World) -> None:
    hvd.init()
    for shuffle in (True, False):
        for length in (1, 7, 12):
            sampler = elastic.ElasticSampler(range(length), shuffle=shuffle, seed=3)
            seen = [index for part in hvd.allgather_object(list(sampler)) for index in part]
            assert set(seen) == set(range(length))
            assert len(seen) == len(sampler) * world.size
            assert len(seen) - length < world.size  # filled up by the least
    sampler = elastic.ElasticSampler(range(12), shuffle=True, seed=3)
    first = [index for part in hvd.allgather_object(list(sampler)) for index in part]
    order = list(sampler.remaining_indices)
    sampler.record_batch(0, 1)
    assert sampler.processed_num == world.size
    saved = sampler.state_dict()
    sampler.reset()
    assert sampler.remaining_indices == order[world.size :]
    sampler.set_epoch(1)
    assert sampler.processed_num == 0
    assert sorted(sampler.remaining_indices) == sorted(first[:12]) == list(range(12))
    assert sampler.remaining_indices != order
    sampler.load_state_dict(saved)
    assert sampler.remaining_indices == order[world.size :]
    sampler.record_batch(0, 100)
    sampler.reset()
    assert list(sampler) == []
    assert len(sampler) == 0


@ranks(1, 2)
def test_a_sampler_is_part_of_the_state(world: World) -> None:
    hvd.init()
    sampler = elastic.ElasticSampler(range(8), shuffle=False)
    loader = torch.utils.data.DataLoader(range(8), batch_size=2, sampler=sampler)
    state = elastic.TorchState(sampler=sampler, batch=0)
    assert len(loader) == 8 // world.size // 2
    if world.rank == 0:
        sampler.record_batch(0, 2)
    state.sync()
    assert sampler.processed_num == 2 * world.size  # rank 0's word
    sampler.record_batch(1, 2)
    state.restore()
    assert sampler.processed_num == 2 * world.size
    state.on_reset()
    assert sampler.remaining_indices == list(range(2 * world.size, 8))


@ranks(1, 2, 3)
def test_ranks_use_batches_of_different_sizes(world: World) -> None:
    """A commit learns what each rank has used: no sample is lost, and none is used twice."""
    hvd.init()
    sampler = elastic.ElasticSampler(range(20), shuffle=True, seed=1, pad=False)
    state = elastic.TorchState(sampler=sampler)
    used: list[int] = []
    for number in range(3):
        mine = list(sampler)[: world.rank + number]
        used += mine
        sampler.record_batch(0, len(mine))
        state.commit()
        assert sampler.processed_num == sum(hvd.allgather_object(len(used)))
        state.on_reset()
    used += list(sampler)
    assert len(sampler) == len(list(sampler))
    everything = [index for part in hvd.allgather_object(used) for index in part]
    assert sorted(everything) == list(range(20))


@ranks(2)
def test_a_rank_is_lost_while_others_take_over_a_state(world: World) -> None:
    """A failed sync keeps the last commit whole: parts of two states would make a third."""
    hvd.init()
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    for module in (first, second):
        torch.nn.init.constant_(module.weight, world.rank)

    class Lost(elastic.StateHandler):
        def sync(self) -> None:
            raise PeerLost("gone", rank=1)

    state = elastic.TorchState(first, step=world.rank, second=second)
    state._handlers["second"] = Lost(second)
    with pytest.raises(PeerLost):
        state.sync()
    assert first.weight.item() == 0.0  # of rank 0
    state.restore()
    assert first.weight.item() == second.weight.item() == state.step == world.rank


def pull(model: torch.nn.Module, step: int) -> None:
    """Compute gradients that differ from rank to rank and from step to step."""
    for parameter in model.parameters():
        (parameter * (step + hvd.rank() - 1.5)).sum().backward()


def make_sharded(kind: str, model: torch.nn.Module) -> POS_Trainer | ShardedOptimizer:
    if kind == "optimizer":
        return ShardedOptimizer(model.parameters(), torch.optim.Adam, lr=0.1, reduce_gradients=True)
    return POS_Trainer(model, "adam", {"lr": 0.1}, rule=None if kind == "trainer" else kind)


@ranks(3)
@pytest.mark.parametrize("kind", ["trainer", "greedy", "optimizer"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_sharded_optimizers_go_back_to_the_last_commit(
    world: World, kind: str, is_lost: bool
) -> None:
    """Share parameters out again, in the same world or after a loss, and load the last commit."""
    hvd.init()
    model = torch.nn.Linear(7, 5)
    optimizer = make_sharded(kind, model)
    state = elastic.TorchState(model, optimizer, step=0)
    state.sync()

    def train(num_steps: int) -> None:
        for _ in range(num_steps):
            pull(model, state.step)
            optimizer.step()
            state.step += 1

    train(3)
    state.commit()
    train(2)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.param_groups[0]["lr"] = 3.0
    train(1)
    if is_lost:
        state.detach()
        with torch.no_grad():
            model.weight.fill_(world.rank)  # memory of this rank by now
    state.restore()
    assert state.step == 3
    if is_lost:
        state.on_reset()
        state.sync()
    hvd.barrier()
    assert optimizer.param_groups[0]["lr"] == 0.1
    train(2)
    assert all(map(torch.equal, model.parameters(), expected))
    optimizer.close()


@ranks(2)
def test_what_was_done_since_a_commit_is_kept_where_hosts_change(world: World) -> None:
    """All ranks put their parts together before they leave, also without a commit."""
    hvd.init()
    model = torch.nn.Linear(3, 3)
    trainer = POS_Trainer(model, "adam", {"lr": 0.5})
    state = elastic.TorchState(model, trainer, step=0)
    state.sync()
    pull(model, 0)
    trainer.step()
    with pytest.raises(StateError, match="call commit"):
        state.save()  # without the others
    if world.rank == 0:
        state.on_hosts_updated(1.0)
    with pytest.raises(elastic.HostsUpdatedInterrupt):
        state.check_host_updates()
    assert state.always_syncs
    trainer.let_go()
    state.on_reset()
    state.sync()
    steps = [float(values["step"]) for values in trainer.state.values()]
    assert set(steps) == {1.0}
    trainer.close()


@ranks(1)
def test_a_sharded_optimizer_of_a_state_stays(world: World) -> None:
    hvd.init()
    trainer = POS_Trainer(torch.nn.Linear(1, 1), "sgd")
    other = POS_Trainer(torch.nn.Linear(1, 1), "sgd")
    state = elastic.TorchState(optimizer=trainer)
    with pytest.raises(UnsupportedError, match="cannot be replaced"):
        state.optimizer = other
    trainer.close()
    other.close()


@ranks(1, 2)
def test_a_scheduler_stays_with_its_optimizer(world: World) -> None:
    """A copy had an optimizer of its own: learning rates stayed where they were."""
    hvd.init()
    parameters = make_parameters()
    inner = torch.optim.SGD(parameters, lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, op=hvd.Sum)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    state = elastic.TorchState(optimizer=optimizer, scheduler=scheduler, epoch=0)

    def train(num_epochs: int) -> list[float]:
        rates = []
        for _ in range(num_epochs):
            optimizer.zero_grad()
            backward(parameters, pull_of(world.rank, state.epoch))
            optimizer.step()
            state.scheduler.step()
            state.epoch += 1
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    assert train(3) == [1.0, 0.5, 0.5]
    state.commit()
    assert train(2) == [0.25, 0.25]
    state.restore()
    assert state.scheduler is scheduler
    assert scheduler.last_epoch == 3
    assert train(2) == [0.25, 0.25]
    if world.rank > 0:  # as one that comes new
        scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": 100})
    state.sync()
    assert scheduler.last_epoch == 5
    assert train(2) == [0.125, 0.125]


class Counter:
    """Something with a state."""

    number = 0

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


class DoublingHandler(elastic.StateHandler):
    """Restores twice of what was saved."""

    def restore(self) -> None:
        super().restore()
        self.value.number *= 2


@ranks(1)
def test_handlers_of_ones_own(world: World) -> None:
    """Adding to the registry, as programs for Horovod do, changed nothing."""
    hvd.init()
    registry = elastic.get_handler_registry()
    entry = (Counter, DoublingHandler)
    for factor in (1, 2, 2):
        counter = Counter()
        state = elastic.TorchState(counter=counter)
        counter.number = 3
        state.save()
        counter.number = 4
        state.restore()
        assert state.counter is counter
        assert counter.number == 3 * factor
        state.sync()
        if factor == 1:
            registry.append(entry)
        elif entry in registry:
            registry.remove(entry)
            elastic.set_handler_registry([*registry, entry])
    elastic.set_handler_registry(registry)
    assert elastic.get_handler_registry() is registry
