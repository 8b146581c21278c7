"""One copy of the parameters per host: shared while it is of use, nobody's zeros afterwards."""

from __future__ import annotations

import gc

import pytest
import torch
from gradient_kit import assert_same, backward
from sharded_kit import make_parameters

from kadril.sharded import POS_Trainer
from kadril.testing import Ranks, ranks
from kadril.testing.faults import gate, mark
from kadril.world import World

SHAPES = ((300, 1000), (7,), (3, 3))

# Torch loads its compiler with the first optimizer, which takes a while on a busy machine.
START_SECONDS = 60.0


def allocated(world: World) -> int:
    """Bytes that this rank has taken, once all have let go of what they do not use."""
    assert world.transport.shared_memory is not None
    gc.collect()
    world.transport.barrier()
    # The allocator looks for what nobody uses when it allocates next.
    POS_Trainer(make_parameters(((3,),)), "sgd", world=world)
    gc.collect()
    world.transport.barrier()
    num_bytes = world.transport.shared_memory.segment.num_allocated_bytes
    world.transport.barrier()
    return num_bytes


@pytest.mark.shared_memory("there is one copy per host")
@ranks(2, 3)
def test_ranks_share_one_copy_and_give_it_back(world: World) -> None:
    before = allocated(world)
    parameters = make_parameters(SHAPES)
    trainer = POS_Trainer(parameters, "sgd", {"lr": 1.0}, world=world)
    needed = sum(each.numel() * 4 for each in parameters)
    # Rank 0 has it; the rest is channels and a scratch for small gradients.
    taken = allocated(world) - before
    assert (taken >= needed) == (world.rank == 0)
    with torch.no_grad():
        if world.rank == 1:
            parameters[0][5, 5] = 77.0
        world.transport.barrier()
        assert parameters[0][5, 5] == 77.0
        world.transport.barrier()
    if world.rank == 0:
        del parameters, trainer
    assert (allocated(world) - before >= needed) == (world.rank == 0), "others still look at it"
    if world.rank:
        assert parameters[0][5, 5] == 77.0
        del parameters, trainer
    assert allocated(world) - before < needed


@ranks(2)
def test_one_rank_holds_its_part_of_the_state(world: World) -> None:
    parameters = make_parameters(SHAPES)
    trainer = POS_Trainer(parameters, "adam", world=world)
    backward(parameters, [torch.ones(shape) for shape in SHAPES])
    trainer.step()
    held = sum(
        value.numel()
        for state in trainer.optimizer.state.values()
        for value in state.values()
        if value.dim()
    )
    whole = 2 * sum(each.numel() for each in parameters)
    assert held <= whole / 2 + 64
    assert trainer.owners.keys() == {"parameter.0", "parameter.1", "parameter.2"}


def leave_early(world: World) -> list[float]:
    """Rank 0 leaves the world, and forgets everything; rank 1 still looks at the parameters."""
    parameters = make_parameters(SHAPES)
    trainer = POS_Trainer(parameters, "sgd", {"lr": 1.0}, world=world)
    backward(parameters, [torch.ones(shape) for shape in SHAPES])
    trainer.step()
    expected = [each.detach() - 1.0 for each in make_parameters(SHAPES)]
    if world.rank == 0:
        world.close()
        assert_same(parameters, expected)
        with torch.no_grad():
            parameters[0].zero_()  # its own by now
        del trainer, parameters
        gc.collect()
        mark("left")
    else:
        gate("look")
        assert_same(parameters, expected)
        world.close()
        assert_same(parameters, expected)
    return [1.0]


def test_parameters_outlive_the_world_and_whoever_made_them() -> None:
    with Ranks(2) as two:
        two.start(leave_early)
        two.wait_mark("left", ranks=[0], timeout=START_SECONDS)
        two.wait_mark("look", ranks=[1], timeout=START_SECONDS)
        two.open_gate("look")
        outcomes = two.wait(20.0)
    assert [outcome.value for outcome in outcomes] == [[1.0], [1.0]], outcomes


def die(world: World) -> str:
    parameters = make_parameters(SHAPES)
    trainer = POS_Trainer(parameters, "sgd", {"lr": 1.0}, world=world)
    backward(parameters, [torch.ones(shape) for shape in SHAPES])
    trainer.step()
    for _ in range(10_000):
        backward(parameters, [torch.ones(shape) for shape in SHAPES])
        trainer.step()
        mark("training")
    return "never"


def test_a_rank_that_dies_is_named() -> None:
    with Ranks(3) as three:
        three.start(die)
        three.wait_mark("training", timeout=START_SECONDS)
        three.signal(1, 9)
        outcomes = three.wait(20.0)
    for rank in (0, 2):
        assert outcomes[rank].error.type == "PeerLost"
        assert outcomes[rank].error.fields["rank"] == 1
