"""Drawn convolutions over spatial and batch blocks, and how they are compared with torch's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from conv_kit import assert_all_equal, gradients, with_whole_numbers
from hypothesis import strategies as st
from partition_kit import LayerCase, block, blocks_of, grid, grids_up_to

from kadril.nn.conv.conv_window import TransposedWindow
from kadril.nn.conv.layers import DistributedConv1d, DistributedConv2d, DistributedConv3d
from kadril.nn.conv.transpose import (
    DistributedConvTranspose1d,
    DistributedConvTranspose2d,
    DistributedConvTranspose3d,
)
from kadril.testing import check_autograd_adjoint, integer_valued
from kadril.world import World

Drawn = TypeVar("Drawn")
Layers = dict[int, tuple[Any, Any]]

CONVOLUTIONS: Layers = {
    1: (torch.nn.Conv1d, DistributedConv1d),
    2: (torch.nn.Conv2d, DistributedConv2d),
    3: (torch.nn.Conv3d, DistributedConv3d),
}
TRANSPOSED: Layers = {
    1: (torch.nn.ConvTranspose1d, DistributedConvTranspose1d),
    2: (torch.nn.ConvTranspose2d, DistributedConvTranspose2d),
    3: (torch.nn.ConvTranspose3d, DistributedConvTranspose3d),
}
MODES = ["zeros", "zeros", "reflect", "replicate", "circular"]


@st.composite
def feature_cases(draw: st.DrawFn, size: int) -> LayerCase:
    num_spatial = draw(st.integers(1, 3))
    partition = draw(st.sampled_from(grids_up_to(size, num_spatial + 1)))
    partition = (partition[0], 1, *partition[1:])
    mode = draw(st.sampled_from(MODES))
    word = draw(st.sampled_from([None, None, None, None, None, "same", "valid"]))
    kernel, stride, dilation, padding, spatial = [], [], [], [], []
    for length in partition[2:]:
        kernel.append(draw(st.integers(1, 5)))
        stride.append(1 if word == "same" else draw(st.integers(1, 3)))
        dilation.append(draw(st.integers(1, 2)))
        reach = dilation[-1] * (kernel[-1] - 1) + 1
        widest = {None: draw(st.integers(0, 3)), "same": reach // 2, "valid": 0}[word]
        padding.append(widest)
        both = reach - 1 if word == "same" else 2 * widest
        least = max(1, reach - both + stride[-1] * (length - 1), widest + 1)
        spatial.append(draw(st.integers(least, least + 5)))
    groups = draw(st.integers(1, 2))
    batch = draw(st.integers(partition[0], partition[0] + 2))
    in_channels = groups * draw(st.integers(1, 2))
    sizes = [batch, in_channels, *spatial]
    return LayerCase(
        partition,
        tuple(draw(blocks_of(each, n)) for each, n in zip(sizes, partition, strict=True)),
        {
            "in_channels": in_channels,
            "out_channels": groups * draw(st.integers(1, 2)),
            "kernel_size": tuple(kernel),
            "stride": tuple(stride),
            "dilation": tuple(dilation),
            "padding": word or tuple(padding),
            "padding_mode": mode,
            "groups": groups,
            "bias": draw(st.booleans()),
        },
    )


@st.composite
def transpose_cases(draw: st.DrawFn, size: int) -> LayerCase:
    num_spatial = draw(st.integers(1, 3))
    partition = draw(st.sampled_from(grids_up_to(size, num_spatial + 1)))
    partition = (partition[0], 1, *partition[1:])
    kernel, stride, dilation, padding, extra, spatial = [], [], [], [], [], []
    for length in partition[2:]:
        kernel.append(draw(st.integers(1, 4)))
        stride.append(draw(st.integers(1, 4)))
        dilation.append(draw(st.integers(1, 3)))
        padding.append(draw(st.integers(0, 3)))
        extra.append(draw(st.integers(0, max(stride[-1], dilation[-1]) - 1)))
        window = TransposedWindow(kernel[-1], stride[-1], dilation[-1], padding[-1], extra[-1])
        least = next(n for n in range(1, 99) if window.output_size(n) >= length)
        spatial.append(draw(st.integers(least, least + 5)))
    groups = draw(st.integers(1, 2))
    in_channels = groups * draw(st.integers(1, 2))
    sizes = [draw(st.integers(partition[0], partition[0] + 2)), in_channels, *spatial]
    return LayerCase(
        partition,
        tuple(draw(blocks_of(each, n)) for each, n in zip(sizes, partition, strict=True)),
        {
            "in_channels": in_channels,
            "out_channels": groups * draw(st.integers(1, 2)),
            "kernel_size": tuple(kernel),
            "stride": tuple(stride),
            "dilation": tuple(dilation),
            "padding": tuple(padding),
            "output_padding": tuple(extra),
            "groups": groups,
            "bias": draw(st.booleans()),
        },
    )


def check_drawn(cases: Sequence[Drawn], check: Callable[[Drawn], None]) -> None:
    """Check each case; the one that fails is told."""
    for case in cases:
        try:
            check(case)
        except Exception as error:
            raise AssertionError(case) from error


def check_twin(world: World, case: LayerCase, layers: Layers) -> None:
    """Compare with the torch layer: output, and all gradients; then the dot-product test."""
    P_x = grid(world, case.partition)
    ordinary, partitioned = layers[len(case.partition) - 2]
    layer = with_whole_numbers(ordinary(**case.settings))
    twin = partitioned.of(copy.deepcopy(layer), P_x)
    x = integer_valued(case.shape, seed=11).requires_grad_()
    with warnings.catch_warnings():
        # torch says that it makes a copy for "same" padding with even kernels.
        warnings.simplefilter("ignore")
        y = layer(x)
    pull = integer_valued(y.shape, seed=12)
    y.backward(pull)
    assert x.grad is not None

    mine = block(x.detach(), P_x, case.blocks).requires_grad_()
    before = mine.detach().clone()
    got = twin(mine)
    assert torch.equal(mine, before)
    if P_x.active:
        assert torch.equal(got, block(y.detach(), P_x))
        assert got.is_contiguous()
    else:
        assert got.numel() == 0
    got.backward(block(pull, P_x) if P_x.active else torch.zeros_like(got))
    assert mine.grad is not None
    assert torch.equal(mine.grad, block(x.grad, P_x, case.blocks))
    if P_x.active:
        assert_all_equal(gradients(twin), gradients(layer))
    if not case.settings["bias"]:
        other = integer_valued(got.shape, seed=13, rank=world.rank)
        check_autograd_adjoint(world, twin, mine.detach(), other)
