"""Transposed convolutions over spatial and batch blocks: the same numbers as torch's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from conv_kit import (
    Case,
    arranged,
    assert_all_equal,
    balanced_block,
    block,
    blocks_of,
    draw_cases,
    gradients,
    partitions,
    with_whole_numbers,
)
from hypothesis import strategies as st

from kadril.nn.conv.transpose import (
    DistributedConvTranspose1d,
    DistributedConvTranspose2d,
    DistributedConvTranspose3d,
)
from kadril.nn.conv.window import TransposedWindow
from kadril.ops.structure import agree
from kadril.partition import Interval
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World

TRANSPORTS = ["shm", "c10d", "mpi:openmpi"]
LAYERS: dict[int, tuple[Any, Any]] = {
    1: (torch.nn.ConvTranspose1d, DistributedConvTranspose1d),
    2: (torch.nn.ConvTranspose2d, DistributedConvTranspose2d),
    3: (torch.nn.ConvTranspose3d, DistributedConvTranspose3d),
}


@st.composite
def transpose_cases(draw: st.DrawFn, size: int) -> Case:
    num_spatial = draw(st.integers(1, 3))
    partition = draw(st.sampled_from(partitions(size, num_spatial + 1)))
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
    return Case(
        partition,
        tuple(draw(blocks_of(each, n)) for each, n in zip(sizes, partition, strict=True)),
        in_channels,
        groups * draw(st.integers(1, 2)),
        {
            "kernel_size": tuple(kernel),
            "stride": tuple(stride),
            "dilation": tuple(dilation),
            "padding": tuple(padding),
            "output_padding": tuple(extra),
            "groups": groups,
            "bias": draw(st.booleans()),
        },
    )


def check(world: World, case: Case) -> None:
    """Compare with the torch layer: output, and all gradients; then the dot-product test."""
    P_x = arranged(world, case.partition)
    ordinary, partitioned = LAYERS[case.num_spatial]
    layer = with_whole_numbers(ordinary(case.in_channels, case.out_channels, **case.settings))
    twin = partitioned.of(copy.deepcopy(layer), P_x)
    x = integer_valued(case.shape, seed=11).requires_grad_()
    y = layer(x)
    pull = integer_valued(y.shape, seed=12)
    y.backward(pull)
    assert x.grad is not None

    mine = block(x.detach(), P_x, case.blocks).requires_grad_()
    got = twin(mine)
    if P_x.active:
        assert torch.equal(got, balanced_block(y.detach(), P_x))
        assert got.is_contiguous()
    else:
        assert got.numel() == 0
    got.backward(balanced_block(pull, P_x) if P_x.active else torch.zeros_like(got))
    assert mine.grad is not None
    assert torch.equal(mine.grad, block(x.grad, P_x, case.blocks))
    if P_x.active:
        assert_all_equal(gradients(twin), gradients(layer))
    if not case.settings["bias"]:
        other = integer_valued(got.shape, seed=13, rank=world.rank)
        check_autograd_adjoint(world, twin, mine.detach(), other)


@pytest.mark.parametrize("part", range(2))
@ranks(1, 2, 3, 4)
def test_drawn_cases(world: World, part: int) -> None:
    for case in draw_cases(transpose_cases(world.size), 60)[part::2]:
        try:
            check(world, case)
        except Exception as error:
            raise AssertionError(case) from error


@ranks(4, transports=TRANSPORTS)
def test_doubling_on_all_transports(world: World) -> None:
    for kernel, padding, extra in [(2, 0, 0), (3, 1, 1), (4, 1, 0), (1, 0, 1)]:
        settings = {
            "kernel_size": (kernel,) * 2,
            "stride": (2, 2),
            "padding": (padding,) * 2,
            "output_padding": (extra,) * 2,
            "bias": True,
        }
        check(world, Case((1, 1, 2, 2), ((2,), (3,), (3, 2), (2, 3)), 3, 2, settings))


@ranks(2)
def test_size_of_the_output(world: World) -> None:
    P_x = arranged(world, (1, 1, 2))
    layer = with_whole_numbers(torch.nn.ConvTranspose1d(2, 2, 3, stride=3, padding=1))
    twin = DistributedConvTranspose1d.of(layer, P_x)
    x = integer_valued((1, 2, 5), seed=4)
    mine = balanced_block(x, P_x)
    for size in (13, 14, 15):
        wanted = balanced_block(layer(x, output_size=[size]), P_x)
        assert torch.equal(twin(mine, output_size=[size]), wanted)
        assert torch.equal(twin(mine, output_size=(1, 2, size)), wanted)
    assert torch.equal(twin(mine), balanced_block(layer(x), P_x))
    with pytest.raises(ValueError, match="dim 2 of the output can have 13 to 15 elements, not 16"):
        twin(mine, output_size=[16])
    with pytest.raises(ValueError, match="1 or 3 numbers"):
        twin(mine, output_size=[13, 13])


@ranks(2)
def test_no_data_is_moved_where_each_has_what_it_needs(world: World) -> None:
    P_x = arranged(world, (1, 1, 2, 1))
    twin = DistributedConvTranspose2d.of(torch.nn.ConvTranspose2d(3, 2, 2, 2), P_x)
    x = torch.zeros(1, 3, 4, 5)
    plan = twin.input_for([0, 0]).plan(agree(P_x, x, "test"))
    assert plan.is_local
    assert plan.cut is None
    assert twin(x).shape == (1, 2, 8, 10)


def test_inputs_of_a_transposed_window() -> None:
    """All inputs that have a part are there, and their outputs hold the whole block."""
    for kernel in range(1, 5):
        for stride in range(1, 5):
            for dilation in range(1, 4):
                for padding in range(4):
                    window = TransposedWindow(kernel, stride, dilation, padding, 0)
                    for start in range(12):
                        outputs = Interval(start, start + 3)
                        inputs = window.inputs_of(outputs)
                        assert window.outputs_of(inputs) & outputs == outputs
                        for one in range(-9, 20):
                            first = stride * one - padding
                            touched = {first + dilation * j for j in range(kernel)}
                            has_part = bool(touched & set(range(*outputs)))
                            assert inputs.start <= one < inputs.stop or not has_part


@ranks(3)
def test_bad_input(world: World) -> None:
    P_x = arranged(world, (1, 1, 3))
    torch.manual_seed(world.rank)
    layer = DistributedConvTranspose1d(P_x, 2, 4, 3, stride=2, padding=1)
    torch.manual_seed(0)
    ordinary = torch.nn.ConvTranspose1d(2, 4, 3)
    assert torch.equal(layer.state_dict()["weight"], ordinary.weight)
    with pytest.raises(ValueError, match=r"DistributedConvTranspose1d.*dim 1 has 3 channels"):
        layer(torch.zeros(1, 3, 4))
    with pytest.raises(ValueError, match=r"dim 2 of the output has 1 .*3 workers along axis 2"):
        layer(torch.zeros(1, 2, int(world.rank == 1)))
    with pytest.raises(ValueError, match="dim 2 has 0 elements"):
        layer(torch.zeros(1, 2, 0))
    assert layer(torch.zeros(1, 2, 2)).shape == (1, 4, 4 if world.rank < 2 else 3)
    odd = DistributedConvTranspose1d(P_x, 1, 1, 3, output_padding=1)
    with pytest.raises(ValueError, match="output padding 1 must be less than stride 1"):
        odd(torch.zeros(1, 1, 2))
    with pytest.raises(ValueError, match="along the batch and the spatial dims only"):
        DistributedConvTranspose1d(arranged(world, (1, 3, 1)), 3, 3, 3)
    with pytest.raises(ValueError, match="it needs 4 axes"):
        DistributedConvTranspose2d(P_x, 3, 3, 3)
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.ConvTranspose1d"):
        DistributedConvTranspose1d.of(torch.nn.Conv1d(1, 1, 1), P_x)  # type: ignore[arg-type]
