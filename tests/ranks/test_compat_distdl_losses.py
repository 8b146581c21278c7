"""Losses of the package named `distdl`, against torch's.

Imported by its long name here, so that `import distdl` stays what it is in this process.
"""

# ruff: noqa: N806 - P_x: a partition
from __future__ import annotations

import pytest
import torch
from distdl_kit import arranged, everyone, gathered, scattered
from partition_kit import whole

from kadril.compat.distdl_path.distdl import nn as dnn
from kadril.testing import ranks
from kadril.world import World


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@ranks(4)
def test_losses_have_their_value_on_rank_0(world: World) -> None:
    P_world = everyone(world)
    P_x = arranged(P_world, [1, 3], [0, 2, 3])
    x, target = whole((4, 7)).sigmoid(), whole((4, 7), seed=4).sigmoid()
    for name in ["L1", "MSE", "PoissonNLL", "BCE", "BCEWithLogits", "KLDiv"]:
        kind, torch_kind = getattr(dnn, f"Distributed{name}Loss"), getattr(torch.nn, f"{name}Loss")
        for reduction in kind._valid_reductions:
            mine = scattered(P_world, P_x, x)
            mine.requires_grad_()
            value = kind(P_x, reduction=reduction)(mine, scattered(P_world, P_x, target))
            whole_x = x.clone().requires_grad_()
            expected = torch_kind(reduction=reduction)(whole_x, target)
            if reduction == "none":
                found = gathered(P_world, P_x, value)
                if P_world.rank == 0:
                    assert torch.equal(found, expected)
                continue
            assert value.shape == ()
            value.backward()
            expected.backward()
            assert mine.grad is not None
            slope = gathered(P_world, P_x, mine.grad)
            if P_world.rank == 0:
                torch.testing.assert_close(value, expected)
                torch.testing.assert_close(slope, whole_x.grad)
            else:
                assert value.item() == 0.0
    with pytest.raises(ValueError, match="reduction must be one of none, mean, sum"):
        dnn.DistributedL1Loss(P_x, reduction="batchmean")


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("shape", [(4,), (2, 2), (4, 1, 1)], ids=str)
@ranks(4)
def test_losses_take_any_blocks(world: World, shape: tuple[int, ...]) -> None:
    """DistDL adds up what workers have: the blocks need not tile a tensor of as many dims as axes.

    Losses that stood on those of `kadril.nn` refused such blocks for a while.
    """
    P_x = arranged(everyone(world), shape)
    x = torch.arange(5.0 * (world.rank + 1)).view(-1, 5).requires_grad_()
    value = dnn.DistributedMSELoss(P_x)(x, torch.ones(1, 5))
    value.backward()
    num_elements = 5 * (1 + 2 + 3 + 4)
    squares = [(torch.arange(5.0 * (rank + 1)) - 1).square().sum() for rank in range(4)]
    # Sums of small integers, divided once.
    assert value.item() == (sum(squares) / num_elements if world.rank == 0 else 0.0)
    assert x.grad is not None
    # A product and a quotient, in one of two orders: a rounding each.
    torch.testing.assert_close(x.grad, 2 * (x.detach() - 1) / num_elements, rtol=3e-7, atol=0)
