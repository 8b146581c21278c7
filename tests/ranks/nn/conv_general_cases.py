"""Drawn convolutions whose channels are split too, and how they are compared with torch's."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from conv_cases import CONVOLUTIONS, Layers
from conv_kit import with_whole_numbers
from hypothesis import strategies as st
from partition_kit import LayerCase, block, blocks_of, grid, grids_up_to

from kadril.nn.conv.conv_window import TransposedWindow
from kadril.partition import Partition
from kadril.testing import check_autograd_adjoint, integer_valued
from kadril.world import World


class GeneralCase(NamedTuple):
    """A layer over channels; worker numbers of the three partitions start where they say."""

    case: LayerCase  # its partition is that of the input
    num_out: int  # workers along the channels of the output
    firsts: tuple[int, int, int]  # first rank of P_x, P_y and P_w


@st.composite
def general_cases(draw: st.DrawFn, size: int) -> GeneralCase:
    num_spatial = draw(st.integers(1, 3))
    shape = draw(st.sampled_from(grids_up_to(size, num_spatial + 3)))
    num_batch, num_out, num_in, *lengths = shape
    groups = draw(st.integers(1, 4))
    least_in, least_out = -(-num_in // groups), -(-num_out // groups)
    in_channels = groups * draw(st.integers(least_in, least_in + 3))
    out_channels = groups * draw(st.integers(least_out, least_out + 3))
    kernel = [draw(st.integers(1, 3)) for _ in lengths]
    stride = [draw(st.integers(1, 2)) for _ in lengths]
    padding = [draw(st.integers(0, 2)) for _ in lengths]
    spatial = []
    for k, s, p, length in zip(kernel, stride, padding, lengths, strict=True):
        least = max(p + 1, k - 2 * p + s * (length - 1))
        spatial.append(draw(st.integers(least, least + 3)))
    sizes = [draw(st.integers(num_batch, num_batch + 1)), in_channels, *spatial]
    partition = (num_batch, num_in, *lengths)
    rest = math.prod(lengths) * num_batch
    firsts = (size - rest * num_in, size - rest * num_out, size - math.prod(shape))
    return GeneralCase(
        LayerCase(
            partition,
            tuple(draw(blocks_of(each, n)) for each, n in zip(sizes, partition, strict=True)),
            {
                "in_channels": in_channels,
                "out_channels": out_channels,
                "kernel_size": tuple(kernel),
                "stride": tuple(stride),
                "padding": tuple(padding),
                "padding_mode": draw(st.sampled_from(["zeros", "reflect", "circular"])),
                "groups": groups,
                "bias": draw(st.booleans()),
            },
        ),
        num_out,
        tuple(draw(st.integers(0, most)) for most in firsts),  # type: ignore[arg-type]
    )


@st.composite
def general_transpose_cases(draw: st.DrawFn, size: int) -> GeneralCase:
    """Transposed, on the same partitions."""
    given = draw(general_cases(size))
    names = ("in_channels", "out_channels", "kernel_size", "stride", "groups", "bias")
    kept = {name: given.case.settings[name] for name in names}
    blocks = list(given.case.blocks[:2])
    padding, extra, dilation = [], [], []
    for kernel, stride, length in zip(
        kept["kernel_size"], kept["stride"], given.case.partition[2:], strict=True
    ):
        dilation.append(draw(st.integers(1, 2)))
        padding.append(draw(st.integers(0, 2)))
        extra.append(draw(st.integers(0, max(stride, dilation[-1]) - 1)))
        window = TransposedWindow(kernel, stride, dilation[-1], padding[-1], extra[-1])
        least = next(n for n in range(1, 99) if window.output_size(n) >= length)
        blocks.append(draw(blocks_of(draw(st.integers(least, least + 3)), length)))
    settings = {
        **kept,
        "padding": tuple(padding),
        "output_padding": tuple(extra),
        "dilation": tuple(dilation),
    }
    return given._replace(case=given.case._replace(blocks=tuple(blocks), settings=settings))


def place(world: World, given: GeneralCase) -> tuple[Partition, Partition, Partition]:
    """P_x, P_y and P_w, on ranks that may be others for each."""
    num_batch, num_in, *lengths = given.case.partition
    weight = (num_batch, given.num_out, num_in, *lengths)
    return (
        grid(world, given.case.partition, given.firsts[0]),
        grid(world, (num_batch, given.num_out, *lengths), given.firsts[1]),
        grid(world, weight if num_batch > 1 else weight[1:], given.firsts[2]),
    )


def check_general(world: World, given: GeneralCase, layers: Layers = CONVOLUTIONS) -> None:
    """Compare with the torch layer: output, all gradients, state; then the dot-product test."""
    case = given.case
    P_x, P_y, P_w = place(world, given)
    ordinary, partitioned = layers[len(case.partition) - 2]
    layer = with_whole_numbers(ordinary(**case.settings))
    twin = partitioned.of(layer, P_x, P_y, P_w)
    x = integer_valued(case.shape, seed=11).requires_grad_()
    y = layer(x)
    pull = integer_valued(y.shape, seed=12)
    y.backward(pull)
    assert x.grad is not None

    mine = block(x.detach(), P_x, case.blocks).requires_grad_()
    got = twin(mine)
    if P_y.active:
        assert torch.equal(got, block(y.detach(), P_y))
    else:
        assert got.numel() == 0
    got.backward(block(pull, P_y) if P_y.active else torch.zeros_like(got))
    if P_x.active:
        assert mine.grad is not None
        assert torch.equal(mine.grad, block(x.grad, P_x, case.blocks))
    for name, parameter in layer.named_parameters():
        held = getattr(twin, name)
        wanted = twin.split.block(name, parameter.grad)
        assert (held is None) == (wanted is None)
        if held is not None:
            assert torch.equal(held.grad, wanted)
    state = twin.state_dict()
    assert list(state) == list(layer.state_dict())
    assert all(torch.equal(state[name], whole) for name, whole in layer.state_dict().items())
    if not case.settings["bias"]:
        other = integer_valued(got.shape, seed=13, rank=world.rank)
        check_autograd_adjoint(world, twin, mine.detach(), other)
