"""Layers of the package named `distdl`, against torch's; its partitions, and its defaults.

Imported by its long name here, so that `import distdl` stays what it is in this process.
"""

# ruff: noqa: N803, N806 - P_x: a partition
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from distdl_kit import arranged, everyone, gathered, scattered
from partition_kit import whole

from kadril.compat.communicator import COMM_NULL
from kadril.compat.distdl_path.distdl import nn as dnn
from kadril.compat.distdl_path.distdl.backend import backend
from kadril.compat.distdl_path.distdl.backends.mpi.partition import (
    MPICartesianPartition,
    MPIPartition,
)
from kadril.compat.distdl_path.distdl.functional import ZeroVolumeCorrectorFunction
from kadril.compat.distdl_path.distdl.utilities.torch import TensorStructure, zero_volume_tensor
from kadril.compat.reduction_op import OPS
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World


def check_layer(
    P_world: MPIPartition,
    partitions: tuple[MPICartesianPartition, MPICartesianPartition],
    layer: Any,
    torch_layer: Callable[[torch.Tensor], torch.Tensor],
    shape: Sequence[int],
    rtol: float = 0.0,
) -> None:
    """Output and input gradient are those of torch, on rank 0."""
    P_x, P_y = partitions
    x_global = whole(shape).requires_grad_()
    y_global = torch_layer(x_global)
    dy_global = whole(y_global.shape, seed=5)
    y_global.backward(dy_global)  # type: ignore[no-untyped-call]
    x = scattered(P_world, P_x, x_global.detach()).requires_grad_()
    y = layer(x)
    y.backward(scattered(P_world, P_y, dy_global).reshape(y.shape))
    assert x.grad is not None
    found, slope = gathered(P_world, P_y, y), gathered(P_world, P_x, x.grad)
    if P_world.rank == 0:
        assert x_global.grad is not None
        torch.testing.assert_close(found, y_global.detach(), rtol=rtol, atol=rtol)
        torch.testing.assert_close(slope, x_global.grad, rtol=rtol, atol=rtol)


# ---- partitions -----------------------------------------------------------------------------


@ranks(4)
def test_workers_that_are_not_in_a_partition(world: World) -> None:
    P_world = everyone(world)
    P = P_world.create_partition_inclusive(np.arange(1, 3))
    P_x = P.create_cartesian_topology_partition([2, 1])
    if world.rank in (1, 2):
        assert (P.active, P.rank, P.size, P.index) == (True, world.rank - 1, 2, world.rank - 1)
        assert P_x.index.tolist() == [world.rank - 1, 0]
        assert P_x.neighbor_ranks(0) == [(-2, 1), (-2, -2)]
    else:
        for each in (P, P_x):
            assert (each.active, each.rank, each.size, each.index) == (False, -2, -1, None)
        assert P.shape.tolist() == [-1]
    assert P_x.shape.tolist() == [2, 1], "kept by workers that are not in it"
    assert P_x.shape.prod() == 2
    assert P_x.dim == 2
    P_x.deactivate()
    assert (P_x.active, P_x.rank, P_x.size, P_x.index) == (False, -2, -1, None)
    assert not MPIPartition(COMM_NULL).active
    assert MPIPartition().create_partition_inclusive([0]).size == -1


@ranks(4)
def test_equality_is_that_of_the_communicator(world: World) -> None:
    P_world, again = everyone(world), everyone(world)
    P = P_world.create_partition_inclusive([0, 1])
    other = P_world.create_partition_inclusive([0, 1])
    assert P_world == again
    assert (P == P) == P.active, "a null communicator equals nothing"
    assert other != P


@ranks(4)
def test_unions_groups_and_small_data(world: World) -> None:
    P_world = everyone(world)
    union = P_world.create_partition_inclusive([3]).create_partition_union(
        P_world.create_partition_inclusive([0, 3])
    )
    assert (union.rank, union.size) == {3: (0, 2), 0: (1, 2)}.get(world.rank, (-2, -1))
    P_x = arranged(P_world, [2, 2])
    assert P_x.create_cartesian_subtopology_partition([True, False]).size == 2
    assert P_x.create_allreduction_partition((0, 1)).size == 4
    send, receive = arranged(P_world, [1, 2]).create_broadcast_partition_to(P_x)
    assert send.active == (world.rank < 2)
    assert receive.size == 2
    rows = P_world.allgather_data(np.array([world.rank, 7]))
    assert rows.tolist() == [[rank, 7] for rank in range(4)]
    assert P_world.allreduce_data(np.array([world.rank]), OPS["MAX"]).tolist() == [3]
    told = P_world.broadcast_data(np.array([[1, 2]]) if union.rank == 0 else None, P_data=union)
    assert told.tolist() == [[1, 2]], "rank 0 of the union has it"


@ranks(4)
def test_communicators(world: World) -> None:
    P_world = everyone(world)
    comm = P_world.create_partition_inclusive([2, 0])._comm
    if world.rank in (0, 2):
        assert (comm.Get_rank(), comm.size) == (0 if world.rank == 2 else 1, 2)
        comm.Barrier()
        total = np.zeros(2)
        comm.Reduce(np.array([1.0, world.rank]), total, op=OPS["SUM"], root=0)
        assert total.tolist() == ([2.0, 2.0] if comm.rank == 0 else [0.0, 0.0])
        assert comm.gather({"rank": world.rank}, root=1) == (
            [{"rank": 2}, {"rank": 0}] if comm.rank == 1 else None
        )
        assert comm.bcast(world.rank) == 2
        assert comm.allreduce(world.rank + 1, op=OPS["PROD"]) == 3
    else:
        assert comm is COMM_NULL
    half = P_world._comm.Split(world.rank % 2, key=-world.rank)
    assert half.allgather(world.rank) == ([2, 0] if world.rank % 2 == 0 else [3, 1])
    assert MPIPartition(half).size == 2
    with pytest.raises(AttributeError, match="has no 'Isend'; it has Allgather"):
        half.Isend  # noqa: B018


@ranks(4)
def test_layers_that_only_some_ranks_build(world: World) -> None:
    """Elsewhere, making what two partitions need is collective over their workers only."""
    P_base = everyone(world).create_partition_inclusive(range(3))
    if not P_base.active:
        return
    P_x = arranged(P_base, [3, 1])
    P_y = arranged(P_base, [1, 1], [0])
    P_z = arranged(P_base, [2, 1], [1, 2])
    y = dnn.SumReduce(P_x, P_y)(torch.ones(2, 2))
    assert y.tolist() == ([[3.0, 3.0]] * 2 if P_y.active else [[], []])
    z = dnn.Broadcast(P_y, P_z)(y)
    assert z.tolist() == ([[3.0, 3.0]] * 2 if P_z.active else [[], []])
    moved = dnn.Repartition(P_z, P_y)(z)
    assert moved.shape == ((4, 2) if P_y.active else (2, 0))


@ranks(2)
def test_partitions_of_different_communicators(world: World) -> None:
    P_world = everyone(world)
    half = MPIPartition(P_world._comm.Split(0))
    with pytest.raises(ValueError, match="different communicators"):
        P_world.create_partition_union(half)


@ranks(4)
def test_what_blocks_make_up(world: World) -> None:
    P_world = everyone(world)
    P_x = arranged(P_world, [1, 3], [1, 2, 3])
    x = torch.zeros(2, world.rank, dtype=torch.complex64)
    found = backend.assemble_global_tensor_structure(TensorStructure(x), P_x, P_world)
    assert found.shape.tolist() == [2, 6]
    assert (found.dtype, found.requires_grad) == (torch.complex64, False)
    if P_x.active:
        shapes = backend.compute_subtensor_shapes_unbalanced(TensorStructure(x), P_x)
        assert shapes.tolist() == [[[2, 1], [2, 2], [2, 3]]]


# ---- movement -------------------------------------------------------------------------------


@ranks(4)
def test_data_of_workers_that_are_not_in_the_partition_is_not_looked_at(world: World) -> None:
    P_world = everyone(world)
    P_x, P_y = arranged(P_world, [1, 1], [0]), arranged(P_world, [1, 4])
    x = torch.full((2, 4), float(world.rank + 1))
    assert dnn.Repartition(P_x, P_y)(x).tolist() == [[1.0], [1.0]]
    assert dnn.Broadcast(P_x, P_y)(x).tolist() == [[1.0] * 4] * 2
    rest = dnn.Repartition(P_y, P_x)(torch.full((2, 1), float(world.rank)))
    assert rest.tolist() == ([[0.0, 1.0, 2.0, 3.0]] * 2 if P_x.active else [[], []])
    assert dnn.Repartition(P_y, P_x, preserve_batch=False)(x).shape[-1] in (0, 16)


@ranks(4)
def test_all_sum_reduce(world: World) -> None:
    P_x = arranged(everyone(world), [2, 2])
    x = integer_valued((3,), rank=world.rank)
    check_autograd_adjoint(world, dnn.AllSumReduce(P_x, (0,)), x, x + 1)
    assert dnn.AllSumReduce(P_x, axes_keep=[0])(torch.ones(1)).item() == 2
    with pytest.raises(ValueError, match="either"):
        dnn.AllSumReduce(P_x)


def widened(
    P_x: MPICartesianPartition, x: torch.Tensor
) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
    """A block with room for a halo of 1 towards its neighbours, and the widths of that."""
    halo = np.array([[int(rank >= 0) for rank in pair] for pair in P_x.neighbor_ranks(P_x.rank)])
    widths = [int(width) for pair in reversed(halo.tolist()) for width in pair]
    return torch.nn.functional.pad(x, widths), halo


@ranks(4)
def test_halo_exchange_is_in_place_in_both_directions(world: World) -> None:
    P_world = everyone(world)
    P_x = arranged(P_world, [2, 2])
    x_global = whole((5, 6))
    padded, halo = widened(P_x, scattered(P_world, P_x, x_global))
    layer = dnn.HaloExchange(P_x, halo, halo, halo)
    x = padded.clone().requires_grad_()
    dirty = x * 1
    y = layer(dirty)
    assert y.data_ptr() == dirty.data_ptr()
    row, column = P_x.index
    rows, columns = ([slice(0, 4), slice(2, 5)][row], [slice(0, 4), slice(2, 6)][column])
    assert torch.equal(y.detach(), x_global[rows, columns]), "corners too"
    dy = whole(y.shape, seed=world.rank)
    slope = dy.clone()
    y.backward(slope)
    assert x.grad is not None
    assert torch.equal(slope, x.grad), "the adjoint is in the gradient that was given"
    sums = torch.stack([(y.detach() * dy).sum(), (padded * x.grad).sum()])
    everyones = dnn.AllSumReduce(P_x, (0, 1))(sums)
    assert everyones[0] == everyones[1]
    assert torch.equal(slope[:1] if halo[0, 0] else slope[-1:], torch.zeros(1, slope.shape[1]))
    # A gradient that is one element for all of them cannot be written to.
    layer(x * 1).sum().backward()
    with pytest.raises(RuntimeError, match="leaf"):
        layer(padded.clone().requires_grad_())


@ranks(2)
def test_halos_of_a_ring(world: World) -> None:
    P_x = everyone(world).create_cartesian_topology_partition([2], periods=[True])
    halo = [[1, 1]]
    x = torch.tensor([0.0, world.rank * 10 + 1, world.rank * 10 + 2, 0.0])
    y = dnn.HaloExchange(P_x, halo, halo, halo)(x)
    assert y.tolist() == ([12, 1, 2, 11] if world.rank == 0 else [2, 11, 12, 1])


# ---- layers ---------------------------------------------------------------------------------

CONVOLUTIONS = [
    # shape, partition, settings
    ((2, 3, 10, 9), (1, 1, 2, 2), {"kernel_size": 3, "padding": 1}),
    ((1, 3, 11, 8), (1, 1, 2, 2), {"kernel_size": [5, 2], "stride": (2, 1), "padding": (2, 0)}),
    ((1, 4, 9, 9), (1, 1, 4, 1), {"kernel_size": 3, "dilation": 2, "padding": 3, "groups": 2}),
    ((1, 2, 12, 3), (1, 1, 4, 1), {"kernel_size": (9, 1), "padding": (4, 0)}),  # over neighbours
    ((1, 2, 6, 8), (1, 1, 2, 2), {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}),
    ((1, 2, 6, 8), (1, 1, 2, 2), {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"}),
    ((1, 2, 6, 8), (1, 1, 2, 2), {"kernel_size": 3, "padding": 2, "padding_mode": "replicate"}),
    ((2, 2, 6, 8), (2, 1, 1, 2), {"kernel_size": 1}),
]


@ranks(4)
def test_feature_convolutions(world: World) -> None:
    P_world = everyone(world)
    for shape, axes, settings in CONVOLUTIONS:
        P_x = arranged(P_world, axes)
        layer = dnn.DistributedConv2d(P_x, in_channels=shape[1], out_channels=4, **settings)
        assert isinstance(layer, dnn.DistributedFeatureConv2d)
        torch_layer = torch.nn.Conv2d(shape[1], 4, **settings).double()
        torch_layer.weight.data = whole(torch_layer.weight.shape, seed=1)
        assert torch_layer.bias is not None
        torch_layer.bias.data = whole((4,), seed=2)
        assert len(list(layer.parameters())) == (2 if P_x.rank == 0 else 0)
        if P_x.rank == 0:
            layer.weight.data = torch_layer.weight.data.clone()
            layer.bias.data = torch_layer.bias.data.clone()
        else:
            assert layer.weight.numel() == layer.bias.numel() == 0
        layer.double()
        check_layer(P_world, (P_x, P_x), layer, torch_layer, shape)
        if layer.P_wb_cart.active:
            assert torch.equal(layer.weight.grad, torch_layer.weight.grad)
            assert torch.equal(layer.conv_layer.bias.grad, torch_layer.bias.grad)


@ranks(4)
def test_channel_and_general_convolutions(world: World) -> None:
    P_world = everyone(world)
    for x_axes, y_axes, w_axes, kind in [
        ((1, 2, 1, 1), (1, 2, 1, 1), (2, 2, 1, 1), dnn.DistributedChannelConv2d),
        ((1, 2, 2, 1), (1, 1, 2, 1), (1, 2, 2, 1), dnn.DistributedGeneralConv2d),
        ((1, 1, 1, 2), (1, 2, 1, 2), (2, 1, 1, 2), dnn.DistributedGeneralConv2d),
    ]:
        P_x, P_y, P_w = (arranged(P_world, axes) for axes in (x_axes, y_axes, w_axes))
        settings: dict[str, Any] = {"kernel_size": 3, "padding": 1, "stride": 2}
        layer = dnn.DistributedConv2d(
            P_x, P_y=P_y, P_w=P_w, in_channels=5, out_channels=3, **settings
        ).double()
        assert type(layer) is kind
        torch_layer = torch.nn.Conv2d(5, 3, **settings).double()
        assert torch_layer.bias is not None
        torch_layer.weight.data = whole((3, 5, 3, 3), seed=1)
        torch_layer.bias.data = whole((3,), seed=2)
        cut: list[slice] = []
        if P_w.active:
            outs, ins = [[slice(0, 2), slice(2, 3)], [slice(0, 3), slice(3, 5)]]
            full = (slice(0, 3), slice(0, 5))
            cut = [
                blocks[place] if length > 1 else all_of
                for blocks, place, length, all_of in zip(
                    (outs, ins), P_w.index[:2], P_w.shape[:2], full, strict=True
                )
            ]
            if layer.stores_weight:
                layer.conv_layer.weight.data = torch_layer.weight.data[cut[0], cut[1]].clone()
            if layer.stores_bias:
                layer.bias.data = torch_layer.bias.data[cut[0]].clone()
            assert layer.stores_weight == (P_w.index[2:] == 0).all()
            assert layer.stores_bias == (P_w.index[1:] == 0).all()
        check_layer(P_world, (P_x, P_y), layer, torch_layer, (2, 5, 8, 7))
        assert torch_layer.weight.grad is not None
        assert torch_layer.bias.grad is not None
        if layer.stores_weight:
            assert torch.equal(layer.weight.grad, torch_layer.weight.grad[cut[0], cut[1]])
        if layer.stores_bias:
            assert torch.equal(layer.bias.grad, torch_layer.bias.grad[cut[0]])


@ranks(4)
def test_convolutions_that_are_refused(world: World) -> None:
    P_world = everyone(world)
    P_x, P_w = arranged(P_world, [1, 2, 1, 1]), arranged(P_world, [2, 2, 1, 1])
    with pytest.raises(ValueError, match="P_x 1 x P_ci x S"):
        dnn.DistributedConv2d(arranged(P_world, [1, 4, 1, 1]), P_x, P_w, 4, 4, 3)
    with pytest.raises(ValueError, match="groups=2 of channels that are split"):
        dnn.DistributedChannelConv2d(P_x, P_x, P_w, 4, 4, 3, groups=2)
    with pytest.raises(ValueError, match="both P_y and P_w"):
        dnn.DistributedConv2d(P_x, P_x, in_channels=4)
    P_f = arranged(P_world, [1, 1, 2, 2])
    with pytest.raises(ValueError, match=r"dim 2 has 4 elements, .* the kernel reaches over 7"):
        dnn.DistributedConv2d(P_f, 1, 1, 7)(torch.ones(1, 1, 2, 8))
    with pytest.raises(ValueError, match="MPIBufferManager"):
        dnn.DistributedConv2d(P_f, 1, 1, 7, buffer_manager=object())


@ranks(4)
def test_pools(world: World) -> None:
    P_world = everyone(world)
    P_x = arranged(P_world, [1, 1, 2, 2])
    cases: list[dict[str, Any]] = [
        {"kernel_size": 2},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (3, 2), "stride": 2, "padding": 1},
    ]
    for settings in cases:
        torch_settings = {"stride": 1, **settings}  # DistDL's default
        for mine, theirs in [
            (dnn.DistributedMaxPool2d, torch.nn.MaxPool2d),
            (dnn.DistributedAvgPool2d, torch.nn.AvgPool2d),
        ]:
            layer = mine(P_x, **settings)
            # Averages are sums times 1/9 or the like, in the same order but for the padding.
            check_layer(P_world, (P_x, P_x), layer, theirs(**torch_settings), (2, 3, 9, 8), 1e-15)
    dilated = dnn.DistributedMaxPool2d(P_x, 3, dilation=2)
    check_layer(
        P_world, (P_x, P_x), dilated, torch.nn.MaxPool2d(3, stride=1, dilation=2), (1, 2, 9, 8)
    )
    with pytest.raises(ValueError, match="no dilation"):
        dnn.DistributedAvgPool2d(P_x, 3, dilation=2)
    with pytest.raises(ValueError, match="more than half of the kernel"):
        dnn.DistributedMaxPool2d(P_x, 2, padding=2)


@ranks(4, transports=("shm", "c10d", "mpi:openmpi"))
def test_linear(world: World) -> None:
    P_world = everyone(world)
    P_x, P_y = arranged(P_world, [1, 2], [0, 1]), arranged(P_world, [1, 2], [2, 3])
    P_w = arranged(P_world, [2, 2])
    layer = dnn.DistributedLinear(P_x, P_y, P_w, 5, 3).double()
    torch_layer = torch.nn.Linear(5, 3).double()
    torch_layer.weight.data, torch_layer.bias.data = whole((3, 5), seed=1), whole((3,), seed=2)
    rows = [slice(0, 2), slice(2, 3)][P_w.index[0]]
    columns = [slice(0, 3), slice(3, 5)][P_w.index[1]]
    layer.sublinear.weight.data = torch_layer.weight.data[rows, columns].clone()
    assert (layer.sublinear.bias is not None) == (P_w.index[1] == 0)
    if layer.sublinear.bias is not None:
        layer.sublinear.bias.data = torch_layer.bias.data[rows].clone()
    check_layer(P_world, (P_x, P_y), layer, torch_layer, (4, 5))
    assert torch_layer.weight.grad is not None
    assert torch.equal(layer.sublinear.weight.grad, torch_layer.weight.grad[rows, columns])


@ranks(3)
def test_linear_refuses_weights_of_three_axes_everywhere(world: World) -> None:
    """Only workers with weights raised, by numpy, and the others waited for them."""
    P_world = everyone(world)
    P_x, P_y = arranged(P_world, [1, 2]), arranged(P_world, [1, 1])
    P_w = arranged(P_world, [1, 1, 2])
    with pytest.raises(ValueError, match=r"P_w must be P_fo x P_fi, .*\[1, 1, 2\]"):
        dnn.DistributedLinear(P_x, P_y, P_w, 4, 3)


@ranks(4)
def test_batch_norm(world: World) -> None:
    """Running variances are the biased ones, which are not torch's."""
    P_world = everyone(world)
    for axes in [(1, 1, 2, 2), (2, 2, 1, 1), (1, 2, 2, 1)]:
        P_x = arranged(P_world, axes)
        layer = dnn.DistributedBatchNorm(P_x, num_features=3, momentum=0.5).double()
        torch_layer = torch.nn.BatchNorm2d(3, momentum=0.5).double()
        owns = all(place == 0 for axis, place in enumerate(P_x.index) if axis != 1)
        assert len(list(layer.parameters())) == (2 if owns else 0)
        assert layer.P_affine.active == owns
        shape = (4, 3, 6, 5)
        # Two passes over 120 elements: some 1e2 roundings of 1e-16 each.
        check_layer(P_world, (P_x, P_x), layer, torch_layer, shape, 1e-12)
        x = whole(shape)
        biased = x.var(dim=(0, 2, 3), unbiased=False)
        mine = [slice(None)] if axes[1] == 1 else [slice(0, 2), slice(2, 3)]
        cut = mine[P_x.index[1]]
        torch.testing.assert_close(layer.running_var.flatten(), (0.5 + 0.5 * biased)[cut])
        mean = 0.5 * x.mean(dim=(0, 2, 3))[cut]
        torch.testing.assert_close(layer.running_mean.flatten(), mean)
        if owns:
            assert layer.gamma.shape == (1, len(mean), 1, 1)
            assert torch_layer.weight.grad is not None
            slopes = (layer.gamma.grad.flatten(), torch_layer.weight.grad[cut])
            torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)
        layer.eval()
        y = layer(scattered(P_world, P_x, x))
        torch.testing.assert_close(
            y.mean() * 0 + layer.running_var.flatten(), (0.5 + 0.5 * biased)[cut]
        )
    with pytest.raises(ValueError, match=r"3 channels in dim 1.* the layer has 4"):
        dnn.DistributedBatchNorm(P_x, 4)(torch.ones(4, 2 - int(P_x.index[1]), 3, 5))


@ranks(4)
def test_upsampling(world: World) -> None:
    P_world = everyone(world)
    P_x = arranged(P_world, [1, 1, 2, 2])
    for mode, align in [("nearest", None), ("linear", False), ("linear", True)]:
        for settings in [{"scale_factor": 2}, {"scale_factor": 1.5}, {"size": (2, 3, 11, 9)}]:
            layer = dnn.DistributedUpsample(
                P_x,
                mode=mode,
                align_corners=bool(align),
                **settings,  # type: ignore[arg-type]
            )
            size: Any = settings.get("size")
            torch_layer = torch.nn.Upsample(
                size=size and size[2:],
                scale_factor=settings.get("scale_factor"),
                mode="bilinear" if mode == "linear" else mode,
                align_corners=align,
            )
            # Two products of weights in another order: a few roundings.
            check_layer(P_world, (P_x, P_x), layer, torch_layer, (2, 3, 7, 6), 1e-14)
    with pytest.raises(NotImplementedError, match="cubic"):
        dnn.DistributedUpsample(P_x, scale_factor=2, mode="cubic")
    with pytest.raises(ValueError, match="either size or scale_factor"):
        dnn.DistributedUpsample(P_x)


@ranks(1)
def test_what_stands_at_the_end(world: World) -> None:
    nothing = ZeroVolumeCorrectorFunction.apply(zero_volume_tensor(3, requires_grad=True))
    nothing.backward()  # type: ignore[no-untyped-call]
    assert nothing.item() == 0.0
    x = torch.ones(2, requires_grad=True)
    assert torch.equal(ZeroVolumeCorrectorFunction.apply(x), x)


def backward_of(
    P_world: MPIPartition, P_x: MPICartesianPartition, layer: Any, shape: Sequence[int]
) -> torch.Tensor:
    """Run a layer forth and back on a tensor of ones; this worker's input, with its gradient."""
    x = scattered(P_world, P_x, torch.ones(list(shape), dtype=torch.float64))
    x = x.float().requires_grad_()
    y = layer(x)
    y.backward(torch.ones_like(y))
    return x


@ranks(4)
def test_gradients_of_parameters_that_are_nothing_here(world: World) -> None:
    """Programs read `layer.weight.grad` on all workers; where none lives it was None."""
    P_world = everyone(world)
    P_x = arranged(P_world, [1, 1, 2, 2])
    feature = dnn.DistributedFeatureConv2d(P_x, 2, 3, kernel_size=3, padding=1)
    P_w = arranged(P_world, [2, 1, 1, 2])
    P_in, P_out = arranged(P_world, [1, 1, 1, 2]), arranged(P_world, [1, 2, 1, 2])
    general = dnn.DistributedGeneralConv2d(P_in, P_out, P_w, 2, 4, kernel_size=3, padding=1)
    for layer, P in ((feature, P_x), (general, P_in), (feature.float(), P_x)):
        layer.zero_grad()
        backward_of(P_world, P, layer, (1, 2, 6, 6))
        for parameter in (layer.weight, layer.bias):
            assert parameter.is_leaf
            assert parameter.grad is not None
            assert parameter.grad.shape == parameter.shape
    assert (feature.weight.grad.numel() > 0) == (world.rank == 0)
    assert (general.weight.grad.numel() > 0) == general.stores_weight
    assert "weight" in feature.state_dict()
    feature.double()
    assert feature.weight.is_leaf
    assert feature.weight.dtype == torch.float64


@pytest.mark.long  # the only one with so many ranks; sums of twelve are in test_shm_same_bits
@ranks(12)
def test_twelve_workers_of_a_linear_layer(world: World) -> None:
    """Inputs that are nothing here have gradients that are nothing; sums are those of a tree."""
    P_world = everyone(world)
    P_x = arranged(P_world, [1, 4], range(4, 8))
    P_y = arranged(P_world, [1, 3], range(3))
    P_w = arranged(P_world, [3, 4], range(12))
    layer = dnn.DistributedLinear(P_x, P_y, P_w, 12, 6)
    x = backward_of(P_world, P_x, layer, (1, 12))
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert layer.sublinear.weight.grad is not None
    if P_w.index[-1] == 0:
        assert torch.equal(layer.sublinear.bias.grad, torch.ones(2))
    P_all = arranged(P_world, [12])
    tenths = dnn.AllSumReduce(P_all, axes_reduce=(0,))(torch.full((1,), 0.1))
    assert torch.equal(tenths, torch.full((1,), 1.2))


@ranks(4)
def test_overlaps_of_a_repartition(world: World) -> None:
    """Programs look at who gets what; where nothing changes all are self-copies."""
    P_world = everyone(world)
    rows, columns = arranged(P_world, [2, 1], [1, 2]), arranged(P_world, [1, 2], [2, 3])
    layer = dnn.Repartition(rows, columns)
    assert layer.P_x_to_y_overlaps == []
    layer(scattered(P_world, rows, whole((5, 4))))
    top = (slice(0, 3), slice(0, 2)), (3, 2)
    # The workers of both are ranks 1, 2 and 3, in this order.
    expected: dict[int, tuple[list[Any], list[Any]]] = {
        0: ([], []),
        1: ([(*top, 1), ((slice(0, 3), slice(2, 4)), (3, 2), 2)], []),
        2: (
            [((slice(0, 2), slice(0, 2)), (2, 2), "self"), ((slice(0, 2), slice(2, 4)), (2, 2), 2)],
            [(*top, 0), ((slice(3, 5), slice(0, 2)), (2, 2), "self")],
        ),
        3: ([], [(*top, 0), ((slice(3, 5), slice(0, 2)), (2, 2), 1)]),
    }
    assert (layer.P_x_to_y_overlaps, layer.P_y_to_x_overlaps) == expected[world.rank]
    same = dnn.Repartition(rows, rows)
    same(scattered(P_world, rows, whole((5, 4))))
    partners = {partner for _, _, partner in same.P_x_to_y_overlaps + same.P_y_to_x_overlaps}
    assert partners == ({"self", None} if rows.active else set())
