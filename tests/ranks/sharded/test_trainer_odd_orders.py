"""Calls in an order that is allowed and seldom: clips between passes, groups added late, others."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
from torch import nn

from kadril.errors import MismatchError, StateError, UnsupportedError
from kadril.sharded import POS_Trainer
from kadril.sharded.ownership import shards
from kadril.testing import ranks
from kadril.world import World

COUNT = 40
TRANSPORTS = ("shm", "c10d")


def make(values: float = 0.0, count: int = COUNT) -> nn.Parameter:
    return nn.Parameter(torch.full((count,), values))


def give(parameter: torch.Tensor, gradient: float) -> None:
    """A backward pass whose gradient is this number, everywhere."""
    (parameter * gradient).sum().backward()


@ranks(1, 2, transports=TRANSPORTS)
@pytest.mark.parametrize("stage", [1, 2])
def test_a_clip_sees_the_passes_since_the_last(world: World, stage: int) -> None:
    """The second clip took what the first had reduced; later passes were stepped unclipped."""
    parameter = make()
    trainer = POS_Trainer([parameter], "sgd", {"lr": 1.0}, stage=stage, world=world)
    give(parameter, 3.0)
    assert trainer.clip_grad_norm_(math.inf) == 3 * math.sqrt(COUNT)  # just to look at it
    give(parameter, 5.0)
    largest = trainer.clip_grad_norm_(2.0, math.inf)
    assert largest == 8
    trainer.step()
    # Torch divides by the norm and a millionth: in float32 that is 2 or one place below.
    assert torch.equal(parameter.detach(), parameter.detach()[:1].expand(COUNT))
    assert 2 - 2**-21 <= -parameter[0].item() <= 2


@ranks(2)
def test_a_gradient_that_replaces_a_clipped_one(world: World) -> None:
    """A new gradient was taken for the one before, which was dropped, where others reduce."""
    parameter = make()
    trainer = POS_Trainer([parameter], "sgd", {"lr": 1.0}, reduce_gradients=False, world=world)
    give(parameter, 3.0)
    trainer.clip_grad_norm_(math.inf)
    parameter.grad = None
    give(parameter, 5.0)
    assert trainer.clip_grad_norm_(math.inf, math.inf) == 5
    trainer.step()
    assert parameter.tolist() == [-5.0] * COUNT


@ranks(2)
def test_what_is_added_to_a_gradient_that_is_not_contiguous(world: World) -> None:
    """Pieces of such gradients are copies, which do not see what is added, where others reduce."""
    parameter = nn.Parameter(torch.zeros(6, 4))
    trainer = POS_Trainer([parameter], "sgd", {"lr": 1.0}, reduce_gradients=False, world=world)
    parameter.grad = torch.arange(24.0).reshape(4, 6).t()
    trainer.allreduce_grads()
    parameter.grad += 1
    trainer.step()
    assert torch.equal(parameter.detach(), -(torch.arange(24.0).reshape(4, 6).t() + 1))


@ranks(1, 2, 3, transports=TRANSPORTS)
@pytest.mark.parametrize("stage", [1, 2])
def test_gradients_stay_when_a_group_is_added(world: World, stage: int) -> None:
    """Gradients that were given already were dropped, and those that were not stayed."""
    first, second, late = make(), make(), make()
    trainer = POS_Trainer([first, second], "sgd", {"lr": 1.0}, stage=stage, world=world)
    give(first, 2.0)
    if world.rank == 0:
        give(second, 1.0 * world.size)
    trainer.add_param_group({"params": [late]})
    give(late, 3.0)
    trainer.step()
    for parameter, value in ((first, -2.0), (second, -1.0), (late, -3.0)):
        assert parameter.tolist() == [value] * COUNT


@ranks(2)
def test_reduced_gradients_stay_when_a_group_is_added(world: World) -> None:
    """`update()` stepped nothing after that, and did not say so."""
    first, late = make(), make()
    trainer = POS_Trainer([first], "sgd", {"lr": 1.0}, world=world)
    give(first, 2.0)
    trainer.allreduce_grads()
    trainer.add_param_group({"params": [late]})
    trainer.update()
    assert first.tolist() == [-2.0] * COUNT
    assert late.tolist() == [0.0] * COUNT


@ranks(2)
def test_a_group_that_does_not_fit_changes_nothing(world: World) -> None:
    """The rank that owned it found out, in `step()`, while the others waited."""
    matrix, vector = nn.Parameter(torch.eye(4)), make()
    trainer = POS_Trainer([matrix], torch.optim.Muon, {"lr": 0.1}, world=world)
    with pytest.raises(UnsupportedError, match="Muon steps matrices"):
        trainer.add_param_group({"params": [vector]})
    assert trainer.members() == [[matrix]]


@ranks(2)
@pytest.mark.parametrize("is_first_shared", [True, False])
def test_memory_that_is_shared_only_for_some(world: World, is_first_shared: bool) -> None:
    """Ranks went apart where one group found no room in shared memory and the other did."""
    first, late = make(), make()
    share = shards.share_block
    nothing = mock.Mock(return_value=None)
    with mock.patch.object(shards, "share_block", share if is_first_shared else nothing):
        trainer = POS_Trainer([first], "sgd", {"lr": 1.0}, world=world)
    with mock.patch.object(shards, "share_block", nothing if is_first_shared else share):
        trainer.add_param_group({"params": [late]})
    for _ in range(2):
        give(first, 2.0)
        give(late, 3.0)
        trainer.step()
    assert first.tolist() == [-4.0] * COUNT
    assert late.tolist() == [-6.0] * COUNT


@ranks(1, 2, transports=TRANSPORTS)
@pytest.mark.parametrize("stage", [1, 2])
def test_a_second_trainer_is_refused_until_the_first_is_closed(world: World, stage: int) -> None:
    """The hooks of the first took all gradients, and the second stepped nothing."""
    parameter = make()
    first = POS_Trainer([parameter], "sgd", {"lr": 1.0}, stage=stage, world=world)
    give(parameter, 1.0)
    first.step()
    first.zero_grad()
    with pytest.raises(StateError, match=r"'parameter.0' is trained by another.*close\(\)"):
        POS_Trainer([("parameter.0", parameter)], "sgd", {"lr": 1.0}, world=world)
    other = POS_Trainer([make()], "sgd", {"lr": 1.0}, world=world)
    with pytest.raises(StateError, match="is trained by another"):
        other.add_param_group({"params": [parameter]})
    first.close()
    first.close()
    second = POS_Trainer([parameter], "sgd", {"lr": 1.0}, world=world)
    give(parameter, 2.0)
    second.step()
    assert parameter.tolist() == [-3.0] * COUNT
    for call in (first.step, first.allreduce_grads, first.generate_backward_options):
        with pytest.raises(StateError, match="this trainer was closed"):
            call()
    del second  # nobody holds it any more: no close() is needed
    third = POS_Trainer([parameter], "sgd", {"lr": 1.0}, world=world)
    give(parameter, 1.0)
    third.step()
    assert parameter.tolist() == [-4.0] * COUNT


@ranks(2)
def test_a_drop_before_a_step_that_is_refused(world: World) -> None:
    """Gradients that the other rank had dropped, too, were in the sums of the next step."""
    parameter = make()
    trainer = POS_Trainer([parameter], "sgd", {"lr": 1.0}, world=world)
    if world.rank == 0:
        give(parameter, 64.0)
        trainer.zero_grad()
    trainer.set_learning_rate(1.0 + world.rank)
    with pytest.raises(MismatchError, match="other options"):
        trainer.step()
    trainer.set_learning_rate(1.0)
    if world.rank == 1:
        give(parameter, 32.0)
        trainer.zero_grad()
    world.transport.barrier()
    give(parameter, 2.0)
    trainer.step()
    assert parameter.tolist() == [-2.0] * COUNT
