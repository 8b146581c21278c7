"""Errors say in words what cannot be: which rank, which parameter, what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradient_kit import assert_same, backward
from sharded_kit import OPTIMIZERS, make_parameters, mean, one_process, plain, pull_of

from kadril.errors import MismatchError, StateError, UnsupportedError
from kadril.sharded import POS_Trainer, ShardedOptimizer
from kadril.testing import ranks
from kadril.world import World

SHAPES = ((3,), (4, 5))


@ranks(2, transports=("shm", "c10d"))
def test_parameters_that_differ_are_named_on_every_rank(world: World) -> None:
    for place, other in enumerate([((3,), (4, 6)), ((3,),), ((3,), (4, 5), (1,))]):
        shapes = SHAPES if world.rank == 0 else other
        words = ["'parameter.1'.*(4, 5).*(4, 6)", "1 more.*'parameter.1'", "1 more.*'parameter.2'"]
        pattern = words[place].replace("(", r"\(").replace(")", r"\)")
        parameters = make_parameters(shapes)
        with pytest.raises(MismatchError, match=pattern):
            POS_Trainer(parameters, "sgd", world=world)
        assert_untouched(parameters)
    parameters = make_parameters(SHAPES)
    with pytest.raises(MismatchError, match=r"optimizer (SGD|Adam)"):
        POS_Trainer(parameters, "sgd" if world.rank else "adam", world=world)
    parameters[0].requires_grad_(world.rank == 0)
    with pytest.raises(MismatchError, match=r"'parameter\.0'.*frozen"):
        POS_Trainer(parameters, "sgd", world=world)
    parameters[0].requires_grad_()
    names = ("a", "b") if world.rank else ("a", "c")
    with pytest.raises(MismatchError, match=r"is parameter 'c'.* on rank 0 and .*'b'.* on rank 1"):
        POS_Trainer(list(zip(names, parameters, strict=True)), "sgd", world=world)
    halves = [parameters[0], parameters[1].half() if world.rank else parameters[1]]
    halves = [torch.nn.Parameter(each.detach()) for each in halves]
    with pytest.raises(MismatchError, match=r"'parameter\.1': torch.float32.*torch.float16"):
        POS_Trainer(halves, "sgd", world=world)
    assert_untouched(parameters)
    trainer = POS_Trainer(parameters, "sgd", world=world)  # nothing is left behind
    more = make_parameters(((5,),)) if world.rank else make_parameters(((6,),))
    with pytest.raises(MismatchError, match=r"'parameter\.2'.*\(6,\).*\(5,\)"):
        trainer.add_param_group({"params": more})
    assert trainer.names == ("parameter.0", "parameter.1")
    assert_untouched([*more])
    trainer.step()
    assert_untouched(parameters)  # without gradients


def assert_untouched(parameters: list[torch.nn.Parameter]) -> None:
    fresh = make_parameters([tuple(each.shape) for each in parameters])
    assert all(torch.equal(a, b) for a, b in zip(parameters, fresh, strict=True))


@ranks(1)
def test_optimizers_that_cannot_be_sharded(world: World) -> None:
    parameters = make_parameters(SHAPES)
    memory = [each.data_ptr() for each in parameters]
    for name in ("lbfgs", torch.optim.LBFGS):
        with pytest.raises(UnsupportedError, match=r"LBFGS.*dot products.*DistributedOptimizer"):
            POS_Trainer(parameters, name, world=world)
    with pytest.raises(UnsupportedError, match=r"LBFGS.*dot products"):
        ShardedOptimizer(parameters, torch.optim.LBFGS, world=world)
    assert_untouched(parameters)
    assert [each.data_ptr() for each in parameters] == memory
    with pytest.raises(UnsupportedError, match=r"SparseAdam.*sparse=False"):
        POS_Trainer(make_parameters(SHAPES), torch.optim.SparseAdam, world=world)
    with pytest.raises(UnsupportedError, match="Adafactor needs whole parameters"):
        POS_Trainer(make_parameters(SHAPES), "adafactor", world=world, rule="flat")
    assert POS_Trainer(make_parameters(SHAPES), "adafactor", world=world).rule == "largest_first"

    class Own(torch.optim.SGD):
        pass

    assert POS_Trainer(make_parameters(SHAPES), Own, world=world).rule == "largest_first"
    assert POS_Trainer(make_parameters(SHAPES), Own, world=world, rule="flat").rule == "flat"


@ranks(1)
def test_arguments_that_make_no_sense(world: World) -> None:
    parameters = make_parameters(SHAPES)
    cases: list[tuple[type[Exception], str, tuple, dict]] = [
        (ValueError, "no optimizer 'adamm'", (parameters, "adamm"), {}),
        (
            ValueError,
            "SGD has no option 'momentun'; it has lr",
            (parameters, "sgd", {"momentun": 1}),
            {},
        ),
        (
            TypeError,
            "give the class, torch.optim.SGD",
            (parameters, torch.optim.SGD(parameters)),
            {},
        ),
        (TypeError, "a name or a class, got int", (parameters, 3), {}),
        (ValueError, "no partition rule 'even'", (parameters, "sgd"), {"rule": "even"}),
        (ValueError, "stage is 3", (parameters, "sgd"), {"stage": 3}),
        (
            ValueError,
            "give one of them",
            (parameters, "sgd"),
            {"stage": 2, "partition_gradients": False},
        ),
        (ValueError, "factor is 0", (parameters, "sgd", None, 0), {}),
        (ValueError, "no parameters", (iter(()), "sgd"), {}),
        (TypeError, "got int", (3, "sgd"), {}),
        (TypeError, "'w' is a int", ({"w": 3}, "sgd"), {}),
        (ValueError, "'w' is torch.int64", ({"w": torch.ones(2, dtype=torch.int64)}, "sgd"), {}),
        (ValueError, "'w' is the result", ({"w": parameters[0] * 2}, "sgd"), {}),
        (
            ValueError,
            "in group 0 already",
            ([{"params": parameters}, {"params": parameters}], "sgd"),
            {},
        ),
        (ValueError, "no shape yet", (torch.nn.LazyLinear(3), "sgd"), {}),
    ]
    for kind, words, arguments, options in cases:
        with pytest.raises(kind, match=words):
            POS_Trainer(*arguments, world=world, **options)
    trainer = POS_Trainer(parameters, "sgd", world=world)
    with pytest.raises(ValueError, match="batch_size is 0"):
        trainer.step(0)
    with pytest.raises(StateError, match=r"allreduce_grads\(\) first"):
        trainer.update()


@ranks(2)
def test_sparse_gradients_are_named(world: World) -> None:
    """Nothing is stepped, and with dense gradients training goes on."""
    for stage in (1, 2):
        table = torch.nn.Embedding(10, 3, sparse=True)
        trainer = POS_Trainer(table, "sgd", {"lr": 0.5}, world=world, stage=stage)
        before = table.weight.detach().clone()
        with pytest.raises(UnsupportedError, match=r"'weight' has a sparse gradient.*sparse=False"):
            table(torch.tensor([1])).sum().backward()
        assert torch.equal(table.weight, before)
        trainer.zero_grad()
        table.sparse = False
        table(torch.tensor([1])).sum().backward()
        trainer.step()
        before[1] -= 0.5
        assert torch.equal(table.weight, before)
    table = torch.nn.Embedding(10, 3, sparse=True)
    optimizer = ShardedOptimizer(table, torch.optim.SGD, world=world)
    before = table.weight.detach().clone()
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(UnsupportedError, match=r"'weight' has a sparse gradient"):
        optimizer.step()
    assert torch.equal(table.weight, before)


@ranks(2, transports=("shm", "c10d"))
def test_a_refused_sparse_gradient_can_be_taken_back(world: World) -> None:
    """A bucket lost its turn to the error, and the sums of the next ones were those of others."""
    shapes = ((70_000,), (300_007,), (90_000,))
    name, options = OPTIMIZERS[2]
    for stage in (2, 1):
        for place in range(len(shapes)):
            for culprits in ((0,), (0, 1)):
                pulls = [pull_of(rank, place, 2, shapes) for rank in range(2)]
                for rank in culprits:
                    pulls[rank][place] = None
                parameters = make_parameters(shapes)
                trainer = POS_Trainer(parameters, name, options, world=world, stage=stage)
                backward(parameters, pulls[world.rank])
                if world.rank in culprits:
                    parameters[place].grad = torch.sparse_coo_tensor(
                        [[1]], [1.0], shapes[place], check_invariants=True
                    )
                    with pytest.raises(UnsupportedError, match="has a sparse gradient"):
                        trainer.step()
                    parameters[place].grad = None
                trainer.step()
                assert_same(parameters, one_process(plain(name, options), [mean(pulls)], shapes)[0])


@ranks(2)
def test_ranks_that_would_step_differently_are_told(world: World) -> None:
    parameters = make_parameters(SHAPES)
    trainer = POS_Trainer(parameters, "sgd", {"lr": 0.5}, world=world)
    backward(parameters, pull_of(world.rank, 0, 2, SHAPES))
    trainer.set_learning_rate(0.5 + world.rank)
    before = [each.detach().clone() for each in parameters]
    with pytest.raises(MismatchError, match="rank 1 would step with other options than rank 0"):
        trainer.step()
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))
    trainer.set_learning_rate(0.5)
    with pytest.raises(MismatchError, match=r"rank 0 is in step.*rank 1 in allreduce_grads"):
        trainer.allreduce_grads() if world.rank else trainer.step()
    trainer.step()


@ranks(2)
def test_a_parameter_that_was_moved_is_named(world: World) -> None:
    model = torch.nn.Linear(3, 3)
    trainer = POS_Trainer(model, "sgd", {"lr": 0.5}, world=world)
    model.weight.data = model.weight.data.clone()
    with pytest.raises(StateError, match=r"'weight' does not lie where .* model.to\(\)"):
        trainer.step()


@ranks(2)
def test_a_trainer_that_cannot_be_made_leaves_parameters_alone(world: World) -> None:
    """Parameters were shared by then: what one rank did to its own, the other saw."""

    class Picky(torch.optim.SGD):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, lr)
            raise ValueError("never content")

    for kind, options, words in (
        ("adam", {"lr": -1.0}, "Invalid learning rate: -1.0"),
        (Picky, {"lr": 0.1}, "never content"),
    ):
        parameter = torch.nn.Parameter(torch.ones(100))
        with pytest.raises(ValueError, match=words):
            POS_Trainer([parameter], kind, options, world=world)
        with torch.no_grad():
            parameter.fill_(world.rank)
        world.transport.barrier()
        assert parameter.unique().tolist() == [world.rank]


@ranks(2)
def test_muon_is_told_of_by_the_parameter_that_is_no_matrix(world: World) -> None:
    """Every rank tells of it, and not only the one that owns that parameter."""
    with pytest.raises(UnsupportedError, match=r"'bias' has shape \(3,\)"):
        POS_Trainer(torch.nn.Linear(5, 3), "muon", {"lr": 0.1}, world=world)


@ranks(2)
def test_steps_take_a_size_and_options_of_any_kind(world: World) -> None:
    """An option whose text has its address in it was taken for another one on each rank."""
    parameter = torch.nn.Parameter(torch.ones(100))
    rate = torch.tensor(0.125)
    group = {"params": [parameter], "lr": rate, "note": object()}
    trainer = POS_Trainer([group], "sgd", {"fused": False}, world=world)
    parameter.grad = torch.ones(100)
    trainer.step()
    assert parameter.unique().tolist() == [0.875]
    with pytest.raises(TypeError, match=r"closures are taken by ShardedOptimizer\.step\(\)"):
        trainer.step(lambda: None)
    rate += 1e-6 * world.rank  # no more than its text shows of it
    with pytest.raises(MismatchError, match="other options"):
        trainer.step()


@ranks(2)
def test_parameters_without_elements(world: World) -> None:
    parameters = [torch.nn.Parameter(torch.ones(0)), torch.nn.Parameter(torch.ones(2, 0))]
    trainer = POS_Trainer(parameters, "adam", world=world)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    trainer.step()
    assert trainer.num_steps == 1
    assert [tuple(each.shape) for each in parameters] == [(0,), (2, 0)]
