"""`POS_Trainer` with models that inductor compiles, with cold and with warm caches."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
from gradient_kit import assert_same
from graph_kit import WIDTH, batch, total, whole
from inductor_kit import forget, inductor
from torch import nn
from torch._dynamo.utils import counters

from kadril.sharded import POS_Trainer
from kadril.sharded.ownership.gradient_memory import raw_grad
from kadril.testing import ranks
from kadril.world import World

NUM_STEPS = 3
NUM_BITS = 5 * NUM_STEPS


def trained(world: World, rule: str, *, compiles: bool) -> nn.Module:
    """Two layers of small integers, after some steps of two passes each.

    The gradient of a layer is a product of the other one and of integers, so each step puts 5 more
    bits behind the point: 4 of the learning rate, and 1 of the mean. Within 53 bits all sums are
    exact, in any order.
    """
    model = whole(nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 3)))
    options = {"lr": 2.0**-4, "momentum": 0.5}
    trainer = POS_Trainer(model, "sgd", options, rule=rule, world=world)
    run = model
    if compiles:
        run = torch.compile(model, backend="kadril", options={"inner": "inductor"})
        for rank in range(world.size):  # one by one, so that rank 1 finds the files of rank 0
            if rank == world.rank:
                assert torch.bool not in saved_dtypes(run)
            world.transport.barrier()
    for step in range(NUM_STEPS):
        for number in range(2):
            total(run(batch(world.rank + 4 * step + 2 * number))).backward()
            assert all(raw_grad(parameter) is None for parameter in model.parameters())
        trainer.step()
    # Hooks of parameters make `.grad` None too; this is what graphs have reduced.
    assert trainer._registration.dropped == set(trainer.names if compiles else ())
    for parameter in model.parameters():
        counted = parameter.detach() * 2**NUM_BITS
        assert torch.equal(counted, counted.round())
        assert counted.abs().max() < 2**45
    return model


def saved_dtypes(run: nn.Module) -> set[torch.dtype]:
    """Return the dtypes of what a forward pass keeps for the backward pass.

    A ReLU's result, which the layer behind it keeps, says where its gradient is zero. The mask that
    inductor kept beside it took a sixth of a transformer's forward pass to write.
    """
    dtypes = set()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        dtypes.add(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run(batch(0))
    assert dtypes
    return dtypes


@ranks(2, timeout=110, patience=100.0)  # a rank waits while its peer compiles
def test_training_by_inductor_is_the_same_with_cold_and_warm_caches(
    world: World, tmp_path: Path
) -> None:
    """All ranks have one directory of caches: a graph there may be of another rank, or run."""
    with inductor(tmp_path):
        for rule, is_warm in (("flat", world.rank > 0), ("flat", True), ("greedy", True)):
            expected = trained(world, rule, compiles=False)
            gc.collect()  # graphs have the name of their trainer, which is free once that is gone
            forget()
            assert_same(trained(world, rule, compiles=True).parameters(), expected.parameters())
            assert counters["aot_autograd"]["autograd_cache_hit"] == 0
            # Forward and backward.
            assert counters["inductor"]["fxgraph_cache_hit"] == 2 * is_warm
            assert counters["inductor"]["fxgraph_cache_miss"] == 2 * (not is_warm)
