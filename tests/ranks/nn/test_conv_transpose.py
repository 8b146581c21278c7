"""Transposed convolutions over spatial, batch and channel blocks: the same numbers as torch's."""

from __future__ import annotations

import pytest
import torch
from conv_cases import TRANSPOSED, check_drawn, check_twin, transpose_cases
from conv_general_cases import GeneralCase, check_general, general_transpose_cases
from conv_kit import with_whole_numbers
from partition_kit import TRANSPORTS, LayerCase, block, draw_cases, grid

from kadril.nn.conv.conv_window import TransposedWindow
from kadril.nn.conv.split_form import SplitForm
from kadril.nn.conv.transpose import (
    DistributedConvTranspose1d,
    DistributedConvTranspose2d,
)
from kadril.nn.conv.transposed_convolution import TransposedConvolution
from kadril.ops.structure import agree
from kadril.partition import Interval
from kadril.testing import integer_valued, ranks
from kadril.world import World


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.long)])
@ranks(1, 2, 3, 4)
def test_drawn_cases(world: World, part: int) -> None:
    cases = draw_cases(transpose_cases(world.size), 60)[part::2]
    check_drawn(cases, lambda case: check_twin(world, case, TRANSPOSED))


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
        case = LayerCase(
            (1, 1, 2, 2),
            ((2,), (3,), (3, 2), (2, 3)),
            {"in_channels": 3, "out_channels": 2, **settings},
        )
        check_twin(world, case, TRANSPOSED)


@ranks(1, 2, 4)
def test_drawn_cases_with_split_channels(world: World) -> None:
    cases = draw_cases(general_transpose_cases(world.size), 30)
    check_drawn(cases, lambda given: check_general(world, given, TRANSPOSED))


@ranks(4, transports=TRANSPORTS)
def test_channels_and_space_on_all_transports(world: World) -> None:
    settings = {"kernel_size": (3,), "stride": (2,), "padding": (1,), "bias": True}
    for partition, num_out, in_sizes, groups in [
        ((1, 2, 1), 2, (3, 3), 3),
        ((1, 2, 2), 1, (5, 1), 1),
        ((1, 1, 2), 2, (6,), 1),
        ((2, 1, 1), 2, (6,), 3),
    ]:
        num_batch, _, length = partition
        blocks = ((2,) if num_batch == 1 else (1, 1), in_sizes, (7,) if length == 1 else (2, 5))
        case = LayerCase(
            partition, blocks, {"in_channels": 6, "out_channels": 3, **settings, "groups": groups}
        )
        check_general(world, GeneralCase(case, num_out, (0, 0, 0)), TRANSPOSED)


@ranks(4)
def test_form_follows_from_the_partitions(world: World) -> None:
    P_x, P_y, P_w = (grid(world, shape) for shape in [(1, 2, 1), (1, 2, 1), (2, 2, 1)])
    torch.manual_seed(world.rank)
    layer = DistributedConvTranspose1d(P_x, 3, 5, 3, P_y=P_y, P_w=P_w)
    assert isinstance(layer.form, SplitForm)
    torch.manual_seed(0)
    ordinary = torch.nn.ConvTranspose1d(3, 5, 3)
    for name, whole in ordinary.state_dict().items():
        assert torch.equal(layer.state_dict()[name], whole), "drawn by the first worker"
    assert layer.weight is not None
    assert layer.weight.shape == (2 if world.rank % 2 == 0 else 1, 3 if world.rank < 2 else 2, 3)
    x = integer_valued((1, 3, 4), seed=3).float()
    got = layer(block(x, P_x), output_size=[6])
    if P_y.active:
        # Sums of at most 9 products of a small whole number and a weight below 1, in another order.
        assert torch.allclose(got, block(ordinary(x), P_y), rtol=0, atol=1e-4)
    P_x, P_y, P_w = (grid(world, shape) for shape in [(1, 1, 2), (1, 2, 2), (2, 1, 2)])
    general = DistributedConvTranspose1d(P_x, 1, 2, 3, P_y=P_y, P_w=P_w)
    assert isinstance(general.form, SplitForm)
    general.load_state_dict(torch.nn.ConvTranspose1d(1, 2, 3).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        general.load_state_dict(ordinary.state_dict())
    with pytest.raises(ValueError, match="give both P_y"):
        DistributedConvTranspose1d(P_x, 1, 2, 3, P_y=P_y)


@ranks(2)
def test_size_of_the_output(world: World) -> None:
    P_x = grid(world, (1, 1, 2))
    layer = with_whole_numbers(torch.nn.ConvTranspose1d(2, 2, 3, stride=3, padding=1))
    twin = DistributedConvTranspose1d.of(layer, P_x)
    x = integer_valued((1, 2, 5), seed=4)
    mine = block(x, P_x)
    for size in (13, 14, 15):
        wanted = block(layer(x, output_size=[size]), P_x)
        assert torch.equal(twin(mine, output_size=[size]), wanted)
        assert torch.equal(twin(mine, output_size=(1, 2, size)), wanted)
    assert torch.equal(twin(mine), block(layer(x), P_x))
    with pytest.raises(ValueError, match="dim 2 of the output can have 13 to 15 elements, not 16"):
        twin(mine, output_size=[16])
    with pytest.raises(ValueError, match="1 or 3 numbers"):
        twin(mine, output_size=[13, 13])


@ranks(2)
def test_no_data_is_moved_where_each_has_what_it_needs(world: World) -> None:
    P_x = grid(world, (1, 1, 2, 1))
    twin = DistributedConvTranspose2d.of(torch.nn.ConvTranspose2d(3, 2, 2, 2), P_x)
    x = torch.zeros(1, 3, 4, 5)
    plan = twin.gather.plan(agree(P_x, x, "test"))
    assert plan.is_local
    assert isinstance(twin.form.kind, TransposedConvolution)
    assert twin.form.kind.cut_at(plan, [world.rank, 0]).block is None
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
                        inputs = window.inputs_of(outputs, 20)
                        assert window.outputs_of(inputs) & outputs == outputs
                        for one in range(-9, 20):
                            first = stride * one - padding
                            touched = {first + dilation * j for j in range(kernel)}
                            has_part = bool(touched & set(range(*outputs)))
                            assert inputs.start <= one < inputs.stop or not has_part


@ranks(3)
def test_bad_input(world: World) -> None:
    P_x = grid(world, (1, 1, 3))
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
    with pytest.raises(ValueError, match="splits the channels; give P_y and P_w"):
        DistributedConvTranspose1d(grid(world, (1, 3, 1)), 3, 3, 3)
    with pytest.raises(ValueError, match="it needs 4 axes"):
        DistributedConvTranspose2d(P_x, 3, 3, 3)
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.ConvTranspose1d"):
        DistributedConvTranspose1d.of(torch.nn.Conv1d(1, 1, 1), P_x)  # type: ignore[arg-type]
