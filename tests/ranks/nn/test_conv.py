"""Convolutions over spatial and batch blocks: the same numbers as torch's, on any partition."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from conv_cases import CONVOLUTIONS, MODES, check_drawn, check_twin, feature_cases
from conv_kit import with_whole_numbers
from partition_kit import TRANSPORTS, LayerCase, block, draw_cases, grid

from kadril.errors import MismatchError
from kadril.nn.conv.layers import (
    DistributedConv1d,
    DistributedConv2d,
    DistributedFeatureConv2d,
)
from kadril.ops.structure import agree
from kadril.partition import balanced_sizes, world_partition
from kadril.testing import integer_valued, ranks
from kadril.world import World


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.long)])
@ranks(1, 2, 3, 4)
def test_drawn_cases(world: World, part: int) -> None:
    cases = draw_cases(feature_cases(world.size), 60)[part::2]
    check_drawn(cases, lambda case: check_twin(world, case, CONVOLUTIONS))


@ranks(4, transports=TRANSPORTS)
def test_all_padding_modes_on_all_transports(world: World) -> None:
    """Widths of padding and kernels may reach over several workers."""
    for mode in MODES[1:]:
        for partition in [(1, 1, 2, 2), (2, 1, 1, 2), (1, 1, 4, 1)]:
            settings = {
                "kernel_size": (5, 4),
                "stride": (1, 2),
                "padding": (4, 3),
                "padding_mode": mode,
                "bias": True,
            }
            blocks = tuple(
                tuple(balanced_sizes(size, length))
                for size, length in zip((2, 3, 5, 9), partition, strict=True)
            )
            check_twin(
                world,
                LayerCase(partition, blocks, {"in_channels": 3, "out_channels": 2, **settings}),
                CONVOLUTIONS,
            )


class Subclass(DistributedConv2d):
    """A user's own, which stays what it is in every form."""


@ranks(3)
def test_parameters_begin_alike_and_are_those_of_the_ordinary_layer(world: World) -> None:
    P_x = grid(world, (1, 1, 3, 1))
    torch.manual_seed(world.rank)
    layer = DistributedConv2d(P_x, 4, 6, 3, 2, 1, 1, 2, False, "reflect", dtype=torch.float64)
    assert isinstance(layer, DistributedFeatureConv2d)
    assert type(copy.deepcopy(layer)) is DistributedFeatureConv2d
    assert type(Subclass(P_x, 1, 1, 1)) is Subclass
    torch.manual_seed(0)
    ordinary = torch.nn.Conv2d(
        4, 6, 3, 2, 1, 1, 2, False, padding_mode="reflect", dtype=torch.float64
    )
    assert list(layer.state_dict()) == list(ordinary.state_dict())
    assert torch.equal(layer.state_dict()["weight"], ordinary.weight)
    twin = DistributedConv2d.of(ordinary.eval(), P_x)
    assert twin.weight is ordinary.weight
    assert twin.bias is None
    assert not twin.training
    assert "P_x=1 x 1 x 3 x 1" in repr(twin)


@ranks(2)
def test_no_data_is_moved_or_copied_where_each_has_what_it_needs(world: World) -> None:
    for partition, arguments in [
        ((1, 1, 2, 1), (1,)),
        ((2, 1, 1, 1), (3, 2, 1)),
        ((1, 1, 2, 1), (2, 2)),
    ]:
        P_x = grid(world, partition)
        layer = DistributedConv2d.of(torch.nn.Conv2d(3, 3, *arguments), P_x)
        shape = [4 // partition[0], 3, 8 // partition[2], 8]
        x = torch.zeros(shape)
        structure = agree(P_x, x, "test")
        assert layer.gather.plan(structure).is_local
        assert layer.gather.fetch(x, structure).data_ptr() == x.data_ptr()
        assert layer(x).shape[0] == 4 // partition[0]


@ranks(2)
def test_gradient_reaches_a_rank_whose_input_needs_none(world: World) -> None:
    """All ranks have to be there for the adjoint of the exchange, one with a constant too."""
    P_x = grid(world, (1, 1, 2))
    layer = with_whole_numbers(torch.nn.Conv1d(1, 1, 3, bias=False).requires_grad_(False))
    twin = DistributedConv1d.of(layer, P_x)
    x = torch.ones(1, 1, 4, dtype=torch.float64, requires_grad=world.rank == 0)
    twin(x).sum().backward()
    if world.rank == 0:
        assert x.grad is not None
        first, second, third = layer.weight.detach().view(-1).tolist()
        both = first + second
        assert x.grad.view(-1).tolist() == [first, both, both + third, both + third]
    with torch.no_grad():
        assert not twin(x).requires_grad


@ranks(2)
def test_block_that_changes_on_one_rank_only(world: World) -> None:
    """Messages follow from the blocks of all ranks, at every call."""
    P_x = grid(world, (1, 1, 2))
    layer = with_whole_numbers(torch.nn.Conv1d(1, 1, 3, padding=1))
    twin = DistributedConv1d.of(layer, P_x)
    for last in (3, 5, 3, 1, 8):
        x = integer_valued((1, 1, 4 + last), seed=last)
        got = twin(block(x, P_x, [(1,), (1,), (4, last)]))
        assert torch.equal(got, block(layer(x), P_x))


@ranks(2)
def test_half_precision_by_autocast(world: World) -> None:
    P_x = grid(world, (1, 1, 2))
    twin = DistributedConv1d.of(torch.nn.Conv1d(1, 1, 3, padding=1), P_x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = twin(torch.ones(1, 1, 4))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert twin.weight is not None
    assert twin.weight.grad is not None
    assert twin.weight.grad.view(-1).tolist() == [7.0, 8.0, 7.0]


@ranks(2)
def test_parameters_on_the_meta_device(world: World) -> None:
    """Parameters there have no values to begin alike with, and were sent all the same."""
    whole = DistributedConv1d(grid(world, (1, 1, 2)), 2, 2, 3, device="meta")
    P_x, P_w = grid(world, (1, 2, 1)), grid(world, (1, 2, 1))
    split = DistributedConv1d(P_x, 2, 2, 3, device="meta", P_y=grid(world, (1, 1, 1)), P_w=P_w)
    for layer, shape in ((whole, (2, 2, 3)), (split, (2, 1, 3))):
        assert layer.weight is not None
        assert layer.weight.is_meta
        assert layer.weight.shape == shape


@ranks(3)
def test_bad_input(world: World) -> None:
    """Errors on all ranks, before anything is moved; the layer works afterwards."""
    P_x = grid(world, (1, 1, 3, 1))
    layer = DistributedConv2d(P_x, 2, 4, (5, 1), padding=(1, 0))
    good = torch.zeros(1, 2, 3, 4)
    odd = world.rank == 1
    for x, error, match in [
        (torch.zeros(1, 3, 3, 4), ValueError, r"DistributedFeatureConv2d.*dim 1 has 3 channels"),
        (torch.zeros(1, 2, 0, 4), ValueError, r"dim 2 has 0 elements, 2 with padding.*over 5"),
        (torch.zeros(1, 2, 1, 4), ValueError, r"dim 2 of the output.*too few for the 3 .*axis 2"),
        (torch.zeros(1, 2, 4), ValueError, "one axis for each dim"),
        (torch.zeros(1, 2, 3, 5 if odd else 4), MismatchError, "dim 3.*position 0"),
        (torch.zeros(1, 2, 3, 4, dtype=torch.half if odd else None), MismatchError, "dtypes"),
        (torch.zeros(1, 2, 3) if odd else good, MismatchError, "numbers of dims"),
    ]:
        with pytest.raises(error, match=match):
            layer(x)
    assert layer(good).shape == (1, 4, 3 if world.rank == 0 else 2, 4)
    for mode, match in [("reflect", "needs at least 4 elements"), ("circular", "more than once")]:
        other = DistributedConv1d(grid(world, (1, 1, 3)), 1, 1, 1, padding=3, padding_mode=mode)
        with pytest.raises(ValueError, match=match):
            other(torch.zeros(1, 1, int(world.rank < 2)))


@ranks(3)
def test_partitions_that_do_not_fit(world: World) -> None:
    with pytest.raises(ValueError, match="P_x has shape 1 x 1 x 3; it needs 4 axes"):
        DistributedConv2d(grid(world, (1, 1, 3)), 1, 1, 3)
    with pytest.raises(ValueError, match="axis 1 of P_x = 1 x 3 x 1 splits the channels"):
        DistributedConv1d(grid(world, (1, 3, 1)), 3, 3, 3)
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Conv1d, got Conv2d"):
        DistributedConv1d.of(torch.nn.Conv2d(1, 1, 1), grid(world, (1, 1, 3)))
    with pytest.raises(ValueError, match="divisible by groups"):
        DistributedConv1d(grid(world, (1, 1, 3)), 3, 3, 3, groups=2)
    P_x = world_partition(world).create_partition_inclusive([0, 2])
    P_x = P_x.create_cartesian_topology_partition((1, 1, 2))
    layer = DistributedConv1d(P_x, 1, 1, 3, padding=1)
    if world.rank == 1:
        with pytest.raises(ValueError, match="zero-volume"):
            layer(torch.zeros(1, 1, 4))
    else:
        assert layer(torch.zeros(1, 1, 4)).shape == (1, 1, 4)


@ranks(2)
def test_different_layers_on_different_ranks(world: World) -> None:
    """Found by the names of the calls, or by messages of different lengths; on all ranks."""
    P_x = grid(world, (1, 1, 2))
    for here, there in [
        ({"kernel_size": 3}, {"kernel_size": 5}),
        ({"kernel_size": 5, "dilation": 2}, {"kernel_size": 5}),
        ({"kernel_size": 5, "padding": 2}, {"kernel_size": 5, "padding": 1}),
    ]:
        settings: dict[str, Any] = here if world.rank == 0 else there
        layer = DistributedConv1d.of(torch.nn.Conv1d(1, 1, **settings), P_x)
        with pytest.raises(MismatchError):
            layer(torch.zeros(1, 1, 12))
    layer = DistributedConv1d.of(torch.nn.Conv1d(1, 1, 3, padding=1), P_x)
    assert copy.deepcopy(layer)(torch.zeros(1, 1, 12)).shape == (1, 1, 12)
