"""Convolutions whose channels are split too: the same numbers as torch's, groups included."""

from __future__ import annotations

import io
import itertools

import pytest
import torch
from conv_cases import check_drawn
from conv_general_cases import GeneralCase, check_general, general_cases
from conv_kit import with_whole_numbers
from partition_kit import TRANSPORTS, LayerCase, block, draw_cases, grid

from kadril.errors import MismatchError
from kadril.nn.conv.channel_groups import pieces_of
from kadril.nn.conv.layers import (
    DistributedChannelConv1d,
    DistributedConv1d,
    DistributedGeneralConv1d,
)
from kadril.ops import zero_volume_tensor
from kadril.partition import Interval
from kadril.testing import integer_valued, ranks
from kadril.world import World


@ranks(1, 2, 3, 4)
def test_drawn_cases(world: World) -> None:
    cases = draw_cases(general_cases(world.size), 40)
    check_drawn(cases, lambda given: check_general(world, given))


@ranks(4, transports=TRANSPORTS)
def test_channels_and_space_on_all_transports(world: World) -> None:
    settings = {"kernel_size": (3,), "padding": (1,), "padding_mode": "reflect", "bias": True}
    for partition, num_out, in_sizes in [
        ((1, 2, 1), 2, (2, 3)),
        ((1, 2, 2), 1, (4, 1)),
        ((1, 1, 2), 2, (5,)),
        ((2, 1, 1), 2, (5,)),
    ]:
        num_batch, _, length = partition
        blocks = ((2,) if num_batch == 1 else (1, 1), in_sizes, (7,) if length == 1 else (2, 5))
        case = LayerCase(
            partition, blocks, {"in_channels": 5, "out_channels": 3, **settings, "groups": 1}
        )
        check_general(world, GeneralCase(case, num_out, (0, 0, 0)))


def test_pieces_of_groups_cover_every_connection_once() -> None:
    for groups, num_out, num_in in itertools.product(range(1, 5), range(1, 4), range(1, 4)):
        out_channels, in_channels = groups * num_out, groups * num_in
        connected = {
            (o, i)
            for o, i in itertools.product(range(out_channels), range(in_channels))
            if o // num_out == i // num_in
        }
        for middle_out, middle_in in itertools.product(range(out_channels), range(in_channels)):
            found = []
            for outputs, inputs in itertools.product(
                (Interval(0, middle_out), Interval(middle_out, out_channels)),
                (Interval(0, middle_in), Interval(middle_in, in_channels)),
            ):
                for piece in pieces_of(outputs, inputs, out_channels, in_channels, groups):
                    rows = piece.outputs.size // piece.num_groups
                    columns = piece.inputs.size // piece.num_groups
                    assert columns == piece.columns.size
                    for n, o, i in itertools.product(
                        range(piece.num_groups), range(rows), range(columns)
                    ):
                        row = outputs.start + piece.outputs.start + n * rows + o
                        column = inputs.start + piece.inputs.start + n * columns + i
                        assert column % num_in == piece.columns.start + i
                        found.append((row, column))
            assert sorted(found) == sorted(connected)


@ranks(4)
def test_form_follows_from_the_partitions(world: World) -> None:
    P_x, P_y, P_w = (grid(world, shape) for shape in [(1, 2, 1), (1, 2, 1), (2, 2, 1)])
    torch.manual_seed(world.rank)
    layer = DistributedConv1d(P_x, 3, 5, 3, P_y=P_y, P_w=P_w)
    assert type(layer) is DistributedChannelConv1d
    assert isinstance(layer, DistributedConv1d)
    torch.manual_seed(0)
    ordinary = torch.nn.Conv1d(3, 5, 3)
    for name, whole in ordinary.state_dict().items():
        assert torch.equal(layer.state_dict()[name], whole), "drawn by the first worker"
    assert layer.weight is not None
    assert layer.weight.shape == (3 if world.rank < 2 else 2, 2 if world.rank % 2 == 0 else 1, 3)
    P_x, P_y, P_w = (grid(world, shape) for shape in [(1, 1, 2), (1, 2, 2), (2, 1, 2)])
    assert type(DistributedConv1d(P_x, 1, 2, 3, P_y=P_y, P_w=P_w)) is DistributedGeneralConv1d
    with pytest.raises(ValueError, match="splits spatial dims too"):
        DistributedChannelConv1d(P_x, 1, 2, 3, P_y=P_y, P_w=P_w)


@ranks(4)
def test_groups_under_autocast(world: World) -> None:
    """A bias, and the zeros of outputs without a group, made the parts of some workers float32."""
    places = [
        ((1, 2, 1), (1, 1, 1), (1, 2, 1)),
        ((1, 1, 1), (1, 2, 1), (2, 1, 1)),
        ((1, 2, 1), (1, 2, 1), (2, 2, 1)),
    ]
    for groups, shapes in itertools.product((2, 3), places):
        P_x, P_y, P_w = (grid(world, shape) for shape in shapes)
        layer = with_whole_numbers(torch.nn.Conv1d(groups, 2 * groups, 3, groups=groups)).float()
        twin = DistributedConv1d.of(layer, P_x, P_y, P_w)
        x = integer_valued((1, groups, 5), torch.float32, seed=groups)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = layer(x)
            y = twin(block(x, P_x))
        if y.requires_grad:
            y.float().sum().backward()
        if P_y.active:
            assert y.dtype == torch.bfloat16
            assert torch.equal(y, block(expected, P_y))
        if twin.weight is not None:
            assert twin.weight.grad is not None
            assert twin.weight.grad.dtype == torch.float32


@ranks(4)
def test_state_saved_on_one_partition_loads_on_others(world: World) -> None:
    places = [((1, 2, 1), (1, 2, 1), (2, 2, 1)), ((1, 3, 1), (1, 1, 1), (1, 3, 1))]
    shapes = [tuple(grid(world, shape) for shape in three) for three in places]
    first, second = (
        DistributedConv1d(P_x, 6, 3, 2, groups=3, P_y=P_y, P_w=P_w) for P_x, P_y, P_w in shapes
    )
    ordinary = torch.nn.Conv1d(6, 3, 2, groups=3)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    saved = torch.load(file)
    for layer in (second, ordinary):
        layer.load_state_dict(saved)
        for name, whole in layer.state_dict().items():
            assert torch.equal(whole, saved[name])
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        second.load_state_dict({**saved, "weight": torch.zeros(3, 1, 2)})
    with pytest.raises(RuntimeError, match=r"Missing.*bias"):
        second.load_state_dict({"weight": saved["weight"]})
    with pytest.raises(RuntimeError, match=r"Unexpected.*other"):
        second.load_state_dict({**saved, "other": saved["bias"]})
    assert second.load_state_dict({"bias": saved["bias"]}, strict=False).missing_keys == ["weight"]


@ranks(3)
def test_input_of_another_dtype_than_the_weight(world: World) -> None:
    """Torch refused it on workers with a weight alone; the one with the output waited for them."""
    P_x, P_w = grid(world, (1, 2, 1)), grid(world, (1, 2, 1))
    layer = DistributedConv1d(P_x, 2, 2, 1, P_y=grid(world, (1, 1, 1), first=2), P_w=P_w)
    x = torch.zeros((1, 1, 4), dtype=torch.float64) if P_x.active else zero_volume_tensor()
    words = r"input is torch\.float64, and the weight on rank 0 is torch\.float32"
    with pytest.raises(TypeError, match=words):
        layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(TypeError, match=words):
        layer(x)  # which leaves float64 as it is
    half = x.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(half).numel() == (8 if world.rank == 2 else 0)
    assert layer.double()(x).numel() == (8 if world.rank == 2 else 0)


@ranks(4)
def test_bad_input(world: World) -> None:
    """Errors on all ranks, those that hold nothing of the input included."""
    shapes = [(1, 2, 1), (1, 2, 1), (2, 2, 1)]
    P_x, P_y, P_w = (grid(world, shape) for shape in shapes)
    layer = DistributedConv1d(P_x, 3, 5, 3, P_y=P_y, P_w=P_w)
    nothing = zero_volume_tensor()
    for shape, error, match in [
        ((1, 1, 4), ValueError, r"DistributedChannelConv1d.*dim 1 has 2 channels in all, not 3"),
        ((1, 2 - world.rank, 2), ValueError, "dim 2 has 2 elements.*the kernel reaches over 3"),
        ((1, 2 - world.rank, 4 + world.rank), MismatchError, "dim 2.*position 0"),
        ((1, 2)[: 2 - world.rank], MismatchError, "numbers of dims"),
    ]:
        with pytest.raises(error, match=match):
            layer(torch.zeros(shape) if P_x.active else nothing)
    with pytest.raises(ValueError, match=r"rank 3 .*zero"):
        layer(torch.zeros(1, 2 - world.rank, 4) if P_x.active else torch.zeros(world.rank - 2))
    assert layer(torch.zeros(1, 2 - world.rank, 4) if P_x.active else nothing).dim() > 0
    with pytest.raises(ValueError, match="give both P_y"):
        DistributedConv1d(P_x, 3, 5, 3, P_y=P_y)
    with pytest.raises(ValueError, match=r"need P_w = 2 x 2 x 1,.* got 1 x 4 x 1"):
        DistributedConv1d(P_x, 3, 5, 3, P_y=P_y, P_w=grid(world, (1, 4, 1)))
    with pytest.raises(ValueError, match="may differ in axis 1"):
        DistributedConv1d(P_x, 3, 5, 3, P_y=grid(world, (1, 2, 2)), P_w=P_w)
    with pytest.raises(ValueError, match="out_channels=1 are too few for 2 workers along axis 1"):
        DistributedConv1d(P_x, 3, 1, 3, P_y=P_y, P_w=P_w)
