"""Sharded training on several hosts: parameters once per host, everything sharded across them."""

from __future__ import annotations

import torch
from sharded_kit import OPTIMIZERS
from test_trainer import check

from kadril.sharded import POS_Trainer
from kadril.testing import ranks
from kadril.world import World


def check_memory(world: World, trainer: POS_Trainer) -> None:
    """Ranks of a host have their parameters in one place."""
    is_alone = world.local_size == 1
    shards = trainer.shards
    assert all(bucket.is_shared_on_host != is_alone for bucket in shards.buckets)
    assert not any(bucket.is_shared for bucket in shards.buckets)
    group = shards._host_group
    assert group is not None
    assert group.size == world.local_size
    if not is_alone:
        memory = group.shared_memory
        assert memory is not None
        offsets = [
            memory.segment.offset_of(bucket.flat.data_ptr(), bucket.num_bytes) or -1
            for bucket in shards.buckets
            if bucket.num_bytes
        ]
        told = group.allgather_bytes(repr(offsets).encode().ljust(200), name="offsets")
        assert -1 not in offsets
        assert len(set(told)) == 1


@ranks(4, transports=["tiered"], hosts="3+1")
def test_hosts_share_parameters_and_have_the_bits_of_one_process(world: World) -> None:
    for name, options in OPTIMIZERS[1:4]:
        trainer = check(world, name, options)
        check_memory(world, trainer)
        trainer.close()
    trainer = check(world, *OPTIMIZERS[3], rule="greedy", stage=1)
    check_memory(world, trainer)
    # Each rank has its own parameters again.
    before = [group["params"][0].detach().clone() for group in trainer.optimizer.param_groups]
    assert before
    trainer.close()
    assert not any(bucket.is_shared_on_host for bucket in trainer.shards.buckets)


@ranks(4, transports=["tiered"], hosts="round robin 2")
def test_more_steps_than_a_race_would_survive(world: World) -> None:
    """A rank that is ahead must not write to parameters that another one still gathers."""
    torch.manual_seed(0)
    shapes = [(257, 129), (129,), (129, 65), (65,)]
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
    trainer = POS_Trainer(parameters, torch.optim.SGD, {"lr": 0.5}, world=world)
    for step in range(1, 61):
        for parameter in parameters:
            (parameter * (world.rank + 1)).sum().backward()
        trainer.step()
        trainer.zero_grad()
        expected = 1 - 0.5 * 2.5 * step  # exact
        for parameter in parameters:
            low, high = torch.aminmax(parameter.detach())
            assert (low.item(), high.item()) == (expected, expected), step
    check_memory(world, trainer)
    trainer.close()
