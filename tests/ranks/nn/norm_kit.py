"""Comparison of norms with torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from partition_kit import Blocks, block
from rounding_kit import U, error

from kadril.nn.norm.batch_norm import DistributedBatchNorm
from kadril.nn.norm.group_norm import DistributedGroupNorm
from kadril.nn.norm.layer_norm import DistributedLayerNorm
from kadril.partition import Partition
from kadril.testing import integer_valued

Make = Callable[[Partition, torch.nn.Module], torch.nn.Module]


def randomize(layer: torch.nn.Module) -> torch.nn.Module:
    """Parameters that are not the ones and zeros they begin with."""
    for number, parameter in enumerate(layer.parameters()):
        with torch.no_grad():
            parameter.copy_(integer_valued(parameter.shape, seed=number + 1) / 4 + 0.5)
    return layer.double()


def compare(
    P_x: Partition, sequential: torch.nn.Module, make: Make, x: torch.Tensor, sizes: Blocks | None
) -> None:
    """One step of both layers: results, gradients, parameters' gradients, buffers.

    Sums of n numbers are off by n u relative to the sum of their absolute values. With |xhat| <= m,
    gradients |g| <= 8, weights |w| <= 2.5 and s = 1 / sqrt(var + eps), a result is off by a few n u
    (1 + |w| m), an input gradient, in which xhat comes twice, by a few n u s |w| |g| (1 + m^2), and
    a parameter gradient, a sum of n of those, by n times as much. Both layers may be off so far,
    and a few means 8 here.
    """
    sequential.zero_grad()
    twin = make(P_x, copy.deepcopy(sequential))
    g = integer_valued(x.shape, seed=9)
    whole = x.clone().requires_grad_()
    expected = sequential(whole)
    expected.backward(g)
    mine = block(x, P_x, sizes).requires_grad_()
    got = twin(mine)
    if not P_x.active:
        assert got.numel() == 0
        return
    got.backward(block(g, P_x, sizes))
    weight = 2.5
    m = (float(expected.detach().abs().max()) + weight) / 0.25 if x.numel() else 1.0
    off = 16 * x.numel() * U
    # Inputs are whole numbers: variances are either 0 or at least 1 / n^2, seldom below 1 here.
    s = max(1.0, float(whole.grad.abs().max())) if whole.grad is not None else 1.0
    assert error(got.detach(), block(expected.detach(), P_x, sizes)) <= off * (1 + weight * m)
    assert whole.grad is not None
    bound = off * s * weight * 8 * (1 + m * m)
    assert error(mine.grad, block(whole.grad, P_x, sizes)) <= bound
    for (name, parameter), other in zip(
        twin.named_parameters(), sequential.parameters(), strict=True
    ):
        assert error(parameter.grad, other.grad) <= bound * x.numel(), name
    for (name, buffer), other in zip(twin.named_buffers(), sequential.buffers(), strict=True):
        assert error(buffer, other) <= off * 64, name
    assert twin.state_dict().keys() == sequential.state_dict().keys()


def batch_norm_twin(P_x: Partition, layer: torch.nn.Module) -> torch.nn.Module:
    assert isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
    return DistributedBatchNorm.of(layer, P_x)


def group_norm_twin(P_x: Partition, layer: torch.nn.Module) -> torch.nn.Module:
    assert isinstance(layer, torch.nn.GroupNorm)
    return DistributedGroupNorm.of(layer, P_x)


def layer_norm_twin(P_x: Partition, layer: torch.nn.Module) -> torch.nn.Module:
    assert isinstance(layer, torch.nn.LayerNorm)
    return DistributedLayerNorm.of(layer, P_x)
