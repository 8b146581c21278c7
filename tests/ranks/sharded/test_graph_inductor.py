"""The pass by the inner compiler "inductor", which orders, fuses, reuses memory, and has caches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graph_kit import Tricky, assert_gradients, batch, reference, total, whole
from inductor_kit import forget, inductor
from torch._dynamo.utils import counters

from kadril.sharded.graph import OwnerPlan, kadril_backend
from kadril.sharded.graph.owner_plan import owners_by_rule
from kadril.testing import ranks
from kadril.world import World


# Long, since test_graph_trainer_inductor.py sees which caches are used, and the gradients, too.
@pytest.mark.long
@ranks(2, timeout=110)
def test_warm_caches_hold_the_graph_of_each_owner(world: World, tmp_path: Path) -> None:
    """The cache of AOTAutograd is keyed by the graph before the pass.

    With it, the second run of a program gave rank 0 the graph of rank 1, and so no gradients where
    it was the owner. Inductor's own cache sees the graph after the pass, and may be used.
    """
    with inductor(tmp_path):
        run_with_cold_and_warm_caches(world)


def run_with_cold_and_warm_caches(world: World) -> None:
    model = whole(Tricky(), torch.float32)
    named = dict(model.named_parameters())
    first = owners_by_rule(named, world.size)
    swapped = {name: 1 - owner for name, owner in first.items()}
    hits = []
    for owners in (first, first, swapped):
        forget()
        plan = OwnerPlan(named.items(), owners, world.transport)
        run = torch.compile(model, backend=kadril_backend)
        for seed in (0, 2):
            x = batch(world.rank + seed, dtype=torch.float32)
            expected = reference(model, world, x)
            model.zero_grad()
            total(run(x)).backward()
            assert_gradients(model, plan, expected)
        world.transport.barrier()  # both have written their files
        hits.append(counters["inductor"]["fxgraph_cache_hit"])
        assert counters["aot_autograd"]["autograd_cache_hit"] == 0
        plan.close()
    # Forward and backward, of files that this rank, and then its peer, has written.
    assert hits[1:] == [2, 2]


class Shared(torch.nn.Module):
    """Two parameters, of which the gradient of `second` is made of that of `first`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(4, 6))
        self.second = torch.nn.Parameter(torch.zeros(4, 6))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return (self.first + self.second * factor) * 3


@pytest.mark.long
@ranks(2, timeout=110)
def test_a_gradient_that_is_read_again_is_reduced_in_a_copy(world: World, tmp_path: Path) -> None:
    """Inductor left the copy out, so the second gradient was made of what was reduced already."""
    model = Shared()
    plan = OwnerPlan(model.named_parameters(), {"first": 0, "second": 0}, world.transport)
    factor = batch(world.rank, dtype=torch.float32)
    weight = 1 + world.rank  # else the mean were each rank's own
    expected = reference(model, world, factor, weight)
    with inductor(tmp_path):
        forget()
        (weight * total(torch.compile(model, backend=kadril_backend)(factor))).backward()
    assert_gradients(model, plan, expected)
    plan.close()
