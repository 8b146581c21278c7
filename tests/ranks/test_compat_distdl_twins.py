"""Layers of the package named `distdl` against those of `kadril.nn` that they stand on.

The same program gives the same bits with both; what differs is who holds parameters and losses.
"""

# ruff: noqa: N803, N806 - P_x: a partition
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from distdl_kit import arranged, beneath, everyone
from partition_kit import block

from kadril import nn
from kadril.compat.distdl_path.distdl import nn as dnn
from kadril.compat.distdl_path.distdl.backends.mpi.partition import (
    MPIPartition,
)
from kadril.partition import balanced_intervals
from kadril.testing import ranks
from kadril.world import World


def drawn(shape: Sequence[int], seed: int) -> torch.Tensor:
    """Return a global tensor that every rank can make for itself."""
    return torch.randn(list(shape), generator=torch.Generator().manual_seed(seed))


def leaf_block(P: MPIPartition, whole: torch.Tensor) -> torch.Tensor:
    """Return this worker's balanced block, as a leaf that wants a gradient."""
    return block(whole, beneath(P)).clone().requires_grad_()


def check_same(P_x: MPIPartition, ours: Any, theirs: Any, shape: Sequence[int]) -> None:
    """Check that output and input gradient of two layers have the same bits."""
    found = []
    for layer in (ours, theirs):
        x = leaf_block(P_x, drawn(shape, seed=1))
        y = layer(x)
        y.backward(drawn(y.shape, seed=2))
        assert x.grad is not None
        found.append((y.detach(), x.grad))
    (y, slope), (expected_y, expected_slope) = found
    assert torch.equal(y, expected_y)
    assert torch.equal(slope, expected_slope)


def check_parameters(layer: Any, twin: Any) -> None:
    """Check that owned parameters get the gradients of the replicated ones."""
    for name in ("weight", "bias"):
        mine, theirs = getattr(layer, name), getattr(twin, name)
        if isinstance(mine, torch.nn.Parameter):
            assert torch.equal(mine.grad, theirs.grad)
        elif theirs is not None:
            assert mine.grad.numel() == 0


def drawn_convolution(in_channels: int, out_channels: int, **settings: Any) -> torch.nn.Conv2d:
    """Return a torch layer with the same parameters on every rank."""
    layer = torch.nn.Conv2d(in_channels, out_channels, **settings)
    with torch.no_grad():
        for seed, parameter in enumerate(layer.parameters()):
            parameter.copy_(drawn(parameter.shape, seed))
    return layer


@ranks(4)
def test_feature_convolutions(world: World) -> None:
    P_x = arranged(everyone(world), [1, 1, 2, 2])
    for mode in ("zeros", "circular", "reflect", "replicate"):
        settings: dict[str, Any] = {"kernel_size": 3, "padding": 1, "stride": 2}
        settings["padding_mode"] = mode
        layer = dnn.DistributedConv2d(P_x, in_channels=2, out_channels=3, **settings)
        twin = nn.DistributedConv2d.of(drawn_convolution(2, 3, **settings), beneath(P_x))
        if P_x.rank == 0:
            layer.load_state_dict(twin.state_dict())
        check_same(P_x, layer, twin, (2, 2, 9, 8))
        check_parameters(layer, twin)


@ranks(4)
def test_convolutions_of_split_channels(world: World) -> None:
    P_world = everyone(world)
    for x_axes, y_axes, w_axes in [
        ((1, 2, 1, 1), (1, 2, 1, 1), (2, 2, 1, 1)),
        ((1, 2, 1, 2), (1, 1, 1, 2), (1, 2, 1, 2)),
        ((1, 1, 2, 1), (1, 2, 2, 1), (2, 1, 2, 1)),
    ]:
        P_x, P_y, P_w = (arranged(P_world, axes) for axes in (x_axes, y_axes, w_axes))
        layer = dnn.DistributedConv2d(P_x, P_y, P_w, 4, 6, kernel_size=3, padding=1)
        torch_layer = drawn_convolution(4, 6, kernel_size=3, padding=1)
        twin = nn.DistributedConv2d.of(torch_layer, *(beneath(P) for P in (P_x, P_y, P_w)))
        with torch.no_grad():
            if layer.stores_weight:
                layer.weight.copy_(twin.weight)
            if layer.stores_bias:
                layer.bias.copy_(twin.bias)
        check_same(P_x, layer, twin, (2, 4, 6, 7))
        check_parameters(layer, twin)


@ranks(4)
def test_layers_without_parameters(world: World) -> None:
    P_x = arranged(everyone(world), [1, 1, 2, 2])
    core = beneath(P_x)
    shape = (2, 3, 9, 8)
    check_same(P_x, dnn.DistributedMaxPool2d(P_x, 3), nn.DistributedMaxPool2d(core, 3, 1), shape)
    check_same(
        P_x,
        dnn.DistributedAvgPool2d(P_x, 3, stride=2, padding=1),
        nn.DistributedAvgPool2d(core, 3, 2, 1),
        shape,
    )
    check_same(
        P_x,
        dnn.DistributedUpsample(P_x, scale_factor=1.5),
        nn.DistributedUpsample(core, scale_factor=1.5, mode="bilinear", align_corners=False),
        shape,
    )


@ranks(4)
def test_batch_norm(world: World) -> None:
    P_x = arranged(everyone(world), [1, 2, 2, 1])
    layer = dnn.DistributedBatchNorm(P_x, num_features=3)
    check_same(P_x, layer, nn.DistributedBatchNorm(beneath(P_x), 3), (4, 3, 6, 5))
    assert set(layer.state_dict()) == {"gamma", "beta", "running_mean", "running_var"}


@ranks(4)
def test_frozen_parameters(world: World) -> None:
    """Only the owner knows that parameters are frozen; the others must not wait for it."""
    P_x = arranged(everyone(world), [1, 1, 2, 2])
    layer = dnn.DistributedConv2d(P_x, in_channels=1, out_channels=1, kernel_size=3)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    x = leaf_block(P_x, drawn((1, 1, 8, 8), seed=1))
    layer(x).sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in layer.parameters())


def network(kit: Any, P: dict[str, Any], parameters: dict[str, torch.Tensor]) -> Any:
    """Return convolution, pool and linear layer, made of either package."""
    is_distdl = kit is dnn
    if is_distdl:
        convolution = kit.DistributedConv2d(P["x"], 1, 2, kernel_size=3, padding=1)
        linear = kit.DistributedLinear(P["flat"], P["out"], P["w"], 32, 3)
        pool = kit.DistributedMaxPool2d(P["x"], 2, stride=2)
    else:
        convolution = kit.DistributedConv2d(P["x"], 1, 2, 3, padding=1)
        linear = kit.DistributedLinear(P["flat"], 32, 3, P_y=P["out"], P_w=P["w"])
        pool = kit.DistributedMaxPool2d(P["x"], 2)
    matrix = linear.sublinear if is_distdl else linear
    with torch.no_grad():
        for layer, name in ((convolution, "conv"), (matrix, "linear")):
            for part in ("weight", "bias"):
                held = getattr(layer, part)
                if isinstance(held, torch.nn.Parameter):
                    whole = parameters[f"{name}.{part}"]
                    held.copy_(whole if name == "conv" else cut(P["w"], whole))
    return torch.nn.Sequential(
        convolution,
        torch.nn.ReLU(),
        pool,
        kit.Repartition(P["x"], P["channels"]),
        torch.nn.Flatten(),
        linear,
    )


def cut(P_w: Any, whole: torch.Tensor) -> torch.Tensor:
    for dim, (length, place) in enumerate(zip(P_w.shape, P_w.index, strict=True)):
        if dim < whole.dim():
            here = balanced_intervals(whole.shape[dim], int(length))[int(place)]
            whole = whole.narrow(dim, here.start, here.size)
    return whole


@ranks(4, transports=("shm", "c10d"))
def test_a_program_has_the_same_losses(world: World) -> None:
    """Three steps of training, written for DistDL and for kadril.nn."""
    P_world = everyone(world)
    axes = {
        "x": [1, 1, 2, 2],
        "channels": [1, 2, 1, 1],
        "flat": [1, 2],
        "out": [1, 2],
        "w": [2, 2],
    }
    partitions: dict[str, Any] = {name: arranged(P_world, shape) for name, shape in axes.items()}
    cores = {name: beneath(P) for name, P in partitions.items()}
    parameters = {
        "conv.weight": drawn((2, 1, 3, 3), 10),
        "conv.bias": drawn((2,), 11),
        "linear.weight": drawn((3, 32), 12) / 8,
        "linear.bias": drawn((3,), 13),
    }
    losses = []
    for kit, P in ((dnn, partitions), (nn, cores)):
        model = network(kit, P, parameters)
        criterion = kit.DistributedMSELoss(P["out"])  # type: ignore[attr-defined]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05) if holds(model) else None
        found = []
        for step in range(3):
            x = block(drawn((4, 1, 8, 8), 20 + step), cores["x"])
            target = block(drawn((4, 3), 30 + step), cores["out"])
            model.zero_grad()
            loss = criterion(model(x), target)
            loss.backward()
            if optimizer is not None:
                optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == (losses[1] if world.rank == 0 else [0.0] * 3)
    if world.rank == 0:
        assert losses[0][2] != losses[0][0]


def holds(model: torch.nn.Module) -> bool:
    return any(True for _ in model.parameters())
