"""The same start on all ranks: parameters, optimizer state, objects."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from gradient_kit import assert_same, backward, combined
from training_kit import all_ranks, make_parameters, momentum_sgd, one_process, pull_of

import kadril.torch as hvd
from kadril.errors import MismatchError
from kadril.testing import ranks
from kadril.torch import objects
from kadril.world import World

EVERYWHERE = ("shm", "c10d", "mpi:openmpi")


def model_of(rank: int) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(rank + 1)
    return model


@ranks(1, 2, 3)
def test_parameters_become_those_of_the_root(world: World) -> None:
    hvd.init()
    for root in range(world.size):
        for kind in range(4):
            model = model_of(world.rank)
            state = model.state_dict()
            given: Any = [
                state,
                list(state.items()),
                model.named_parameters(),
                list(model.parameters()),
            ][kind]
            hvd.broadcast_parameters(given, root_rank=root)
            for name, tensor in model.state_dict().items():
                is_buffer = "running" in name or "num_batches" in name
                want = world.rank if is_buffer and kind > 1 else root
                assert torch.equal(tensor, torch.full_like(tensor, want + 1)), (kind, name)


@ranks(2, transports=("c10d", "mpi:openmpi"))
def test_the_start_on_other_transports(world: World) -> None:
    hvd.init()
    model = model_of(world.rank)
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    for tensor in model.state_dict().values():
        assert torch.equal(tensor, torch.full_like(tensor, 2))
    assert hvd.broadcast_object({"from": world.rank}, 1) == {"from": 1}
    assert hvd.allgather_object("x" * world.rank) == ["", "x"]
    parameters = make_parameters()
    optimizer = torch.optim.Adam(parameters)
    if world.rank == 1:
        backward(parameters, pull_of(0))
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.state_dict()["state"][0]["step"] == 1


@ranks(2)
def test_entries_that_are_no_tensors(world: World) -> None:
    """A state_dict may hold an extra state of any type; Horovod fell over it."""
    hvd.init()
    state = {"weight": torch.full((2,), world.rank), "extra": {"r": world.rank}, "none": None}
    hvd.broadcast_parameters(state, root_rank=1)
    assert torch.equal(state["weight"], torch.ones(2))
    assert state["extra"] == {"r": 1}
    assert state["none"] is None
    pairs = [("weight", torch.full((2,), world.rank)), ("count", world.rank)]
    hvd.broadcast_parameters(pairs, root_rank=1)
    assert torch.equal(pairs[0][1], torch.ones(2))
    assert pairs[1] == ("count", world.rank)


@ranks(2, 3)
def test_models_that_differ_are_told_before_anything_moves(world: World) -> None:
    hvd.init()
    weight = torch.full((2,), float(world.rank))
    cases: list[tuple[dict[str, torch.Tensor], str]] = [
        ({"w": weight, f"only.{world.rank}": torch.zeros(1)}, r"only\.0.* on rank 0 and only\.1"),
        ({"w": weight, "x": torch.zeros(2 + world.rank)}, r"\(2,\) on rank 0 and .*\(3,\)"),
        (
            {"w": weight, "x": torch.zeros(2).to([torch.float32, torch.float64][world.rank > 0])},
            "float64",
        ),
        ({"w": weight} if world.rank else {"w": weight, "z": torch.zeros(1)}, "1 more"),
    ]
    for state, message in cases:
        with pytest.raises(MismatchError, match=message):
            hvd.broadcast_parameters(state, root_rank=0)
        assert torch.equal(weight, torch.full((2,), float(world.rank)))
    hvd.broadcast_parameters({"w": weight}, root_rank=0)
    assert not weight.any()


@ranks(1, 2)
def test_parameters_of_another_kind_are_refused(world: World) -> None:
    hvd.init()
    for given in (3, torch.zeros(3), [("a", torch.zeros(1)), ("a", torch.zeros(1))], [3]):
        with pytest.raises(ValueError, match=r"give model|twice|give tensors"):
            hvd.broadcast_parameters(given, root_rank=0)
    with pytest.raises(TypeError, match="takes a torch optimizer"):
        hvd.broadcast_optimizer_state(torch.nn.Linear(1, 1), root_rank=0)


MAKERS = [
    momentum_sgd,
    lambda p: torch.optim.Adam(p, lr=0.5, weight_decay=0.5, amsgrad=True),
    lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.5), weight_decay=0.5),
    lambda p: torch.optim.Adagrad(p, lr=0.5),
    lambda p: torch.optim.Rprop(p, lr=0.5),
    lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=3),
]


def step_alone(optimizer: torch.optim.Optimizer, parameters: list[Any], step: int) -> None:
    """A step of one rank, also of LBFGS."""

    def closure() -> float:
        optimizer.zero_grad()
        backward(parameters, pull_of(0, step))
        return float(step + 1)

    optimizer.step(closure)


@ranks(1, 2, 3)
def test_state_reaches_ranks_that_have_none_and_no_weight_changes(world: World) -> None:
    """Horovod made missing state by a fake step, and weight decay changed weights for good.

    Only the root was restored from a checkpoint. All ranks then go on alike, to the last bit.
    """
    hvd.init()
    for make in MAKERS:
        parameters = make_parameters()
        optimizer = make(parameters)
        root = world.size - 1
        if world.rank == root:
            for step in range(2):
                step_alone(optimizer, parameters, step)
            optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.zero_grad()
        hvd.broadcast_parameters(list(parameters), root_rank=root)
        before = [p.detach().clone() for p in parameters]
        hvd.broadcast_optimizer_state(optimizer, root_rank=root)
        assert_same(parameters, before)
        assert all(p.grad is None for p in parameters)
        assert float(optimizer.param_groups[0]["lr"]) in (0.25, 0.0625)
        step_alone(optimizer, parameters, 2)
        expected = make_parameters()
        reference = make(expected)
        for step in range(3):
            if step == 2:
                reference.param_groups[0]["lr"] *= 0.5
            step_alone(reference, expected, step)
        assert_same(parameters, expected)


@ranks(2)
def test_state_replaces_other_state(world: World) -> None:
    """Ranks that have state of their own, and options that the root does not have."""
    hvd.init()
    parameters = make_parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.5)
    if world.rank == 1:  # the root has no state yet
        step_alone(optimizer, parameters, 0)
        optimizer.param_groups[0]["left_over"] = 3
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert not optimizer.state
    assert "left_over" not in optimizer.param_groups[0]
    step_alone(optimizer, parameters, 1)
    held = optimizer.state[parameters[0]]["momentum_buffer"]
    if world.rank == 0:
        step_alone(optimizer, parameters, 2)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.state[parameters[0]]["momentum_buffer"] is held  # in place where it fits


@ranks(1, 2, 3)
def test_state_of_a_wrapped_optimizer(world: World) -> None:
    """The documented order: wrap, then broadcast both; one rank comes from a checkpoint."""
    hvd.init()
    parameters = make_parameters()
    optimizer = momentum_sgd(parameters)
    if world.rank == 0:
        for parameter, gradient in zip(parameters, combined(all_ranks(0)), strict=True):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=1.0)
    hvd.broadcast_parameters(list(parameters), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=None)
    optimizer.zero_grad()
    backward(parameters, pull_of(world.rank, 1))
    optimizer.step()
    scheduler.step()
    sums = [combined(all_ranks(0)), combined(all_ranks(1))]
    assert_same(parameters, one_process(momentum_sgd, sums))


@ranks(2)
def test_optimizers_that_differ_are_told(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = torch.optim.SGD(parameters[: 3 + world.rank], lr=0.5)
    with pytest.raises(MismatchError, match="Rank 1 has 1 more"):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)


@ranks(1, 2, 3)
def test_objects_of_any_type_travel(world: World) -> None:
    """Names were made of the object's type: ranks with different types waited for ever."""
    hvd.init()
    for root in range(world.size):
        mine: Any = ["a list", ("a", "tuple"), {"a": "dict"}][world.rank]
        received = hvd.broadcast_object(mine, root)
        assert received == ["a list", ("a", "tuple"), {"a": "dict"}][root]
        if world.rank == root:
            assert received is mine
        assert hvd.broadcast_object(None if world.rank != root else 0, root_rank=root) == 0
    gathered = hvd.allgather_object({"rank": world.rank, "data": "x" * (1000 * world.rank)})
    assert [each["rank"] for each in gathered] == list(range(world.size))
    assert [len(each["data"]) for each in gathered] == [1000 * r for r in range(world.size)]
    tensors = hvd.allgather_object(torch.full((2,), world.rank))
    assert_same(tensors, [torch.full((2,), rank) for rank in range(world.size)])


@ranks(3)
def test_objects_within_a_process_set(world: World) -> None:
    hvd.init()
    process_set = hvd.add_process_set([0, 2])
    if world.rank != 1:
        assert hvd.broadcast_object(world.rank, 2, process_set=process_set) == 2
        assert hvd.allgather_object(world.rank, process_set=process_set) == [0, 2]
    assert hvd.broadcast_object(world.rank, 1) == 1
    hvd.remove_process_set(process_set)


@ranks(1, 2, 3)
def test_large_objects_go_in_parts(world: World) -> None:
    """More than 2 GiB did not fit into the length that announced it; here parts are 7 bytes."""
    hvd.init()
    part, objects.PART = objects.PART, 7
    try:
        text = "".join(chr(97 + place % 26) for place in range(100))
        assert hvd.broadcast_object(text if world.rank == 0 else "", 0) == text
        texts = [text[: 30 * rank] for rank in range(world.size)]
        assert hvd.allgather_object(texts[world.rank]) == texts
    finally:
        objects.PART = part


@ranks(2, 3)
def test_an_object_that_cannot_be_pickled_fails_on_all_ranks(world: World) -> None:
    """Otherwise the others would wait for its bytes."""
    hvd.init()
    with pytest.raises(ValueError, match="rank 1 could not pickle"):
        hvd.broadcast_object(threading.Lock() if world.rank == 1 else None, root_rank=1)
    with pytest.raises(ValueError, match=r"position\(s\) \[0\]"):
        hvd.allgather_object(threading.Lock() if world.rank == 0 else 3)
    assert hvd.allgather_object(world.rank) == list(range(world.size))  # and the next one works


class OfTheProgram:
    """An object that is made by code that its sender chose."""


@ranks(2, 3)
def test_any_object_travels_where_pickle_is_allowed(world: World) -> None:
    """Nobody makes it without `allow_pickle`, and all ranks are told by whom and of what."""
    hvd.init()
    mine = OfTheProgram() if world.rank == 1 else None
    with pytest.raises(ValueError, match=r"rank 1 .*allow_pickle=True"):
        hvd.broadcast_object(mine, root_rank=1)
    with pytest.raises(ValueError, match=r"position\(s\) \[1\].*allow_pickle=True"):
        hvd.allgather_object(mine)
    assert isinstance(hvd.broadcast_object(mine, 1, allow_pickle=True), OfTheProgram)
    gathered = hvd.allgather_object(mine, allow_pickle=True)
    assert [isinstance(each, OfTheProgram) for each in gathered] == [
        rank == 1 for rank in range(world.size)
    ]


@ranks(2)
def test_state_that_is_shared_here_is_received_into_once(world: World) -> None:
    """Two entries that hold one tensor on this rank, and different ones on the root."""
    hvd.init()
    parameters = make_parameters(((3,), (3,)))
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    shared = torch.zeros(3)
    for place, parameter in enumerate(parameters):
        optimizer.state[parameter]["buffer"] = (
            torch.full((3,), place + 1.0) if world.rank == 0 else shared
        )
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    values = [optimizer.state[parameter]["buffer"] for parameter in parameters]
    assert_same(values, [torch.full((3,), 1.0), torch.full((3,), 2.0)])
