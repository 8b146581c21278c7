"""Both views of a global array: what one process would cut out, and the adjoint of that.

Values are small whole numbers in float64: sums are exact, and compared with `==`.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from partition_kit import grid

from kadril.experiment import GlobalArray, GridError
from kadril.experiment.global_array import CENTER, EAST, NORTH, NORTHWEST, SINGLE, SOUTHEAST, WEST
from kadril.partition import balanced_intervals
from kadril.testing import check_adjoint, check_autograd_adjoint, integer_valued, ranks
from kadril.world import World


def layer_of(ifmshape: tuple[int, ...], fshape: Any, stride: int = 1, **others: Any) -> Any:
    names = {"name": "layer", "nifm": 2, "ifmshape": ifmshape, "fshape": fshape, "stride": stride}
    return SimpleNamespace(**{**names, **others})


def expected_chunk(x: torch.Tensor, array: GlobalArray) -> torch.Tensor:
    """Inputs of this rank's outputs, cut out of the whole image."""
    slices: list[slice] = []
    for window, size, length, index in zip(
        array.windows,
        array.global_shape,
        array.grid,
        array.partition.index[2:],  # type: ignore[index]
        strict=True,
    ):
        outputs = balanced_intervals(window.output_size(size), length)[index]
        start = outputs.start * window.stride - window.before
        stop = (outputs.stop - 1) * window.stride + window.kernel - window.before
        slices.append(slice(max(0, start), min(size, stop)))
    return x[(slice(None), slice(None), *slices)]


CASES: list[tuple[tuple[int, ...], Any, int, dict[str, Any]]] = [
    ((28, 28), (5, 5), 1, {}),
    ((24, 24), (2, 2), 2, {}),
    ((9, 7), (3, 2), 1, {}),  # uneven blocks
    ((11, 13), (3, 3), 2, {}),  # a stride that divides no block
    ((8, 8), (7, 5), 1, {"padding": 3}),  # halos wider than a neighbour
    ((6, 6), (3, 3), 1, {"is_lcn": True}),
    ((7, 9), (5, 5), 1, {"is_lcn": True}),
]
GRIDS = {1: [(1, 1)], 2: [(2, 1), (1, 2)], 3: [(3, 1)], 4: [(2, 2), (4, 1), (1, 4)], 6: [(3, 2)]}


@ranks(1, 2, 3, 4, 6)
def test_views_are_those_of_one_process(world: World) -> None:
    for (shape, fields, stride, others), lengths in itertools.product(CASES, GRIDS[world.size]):
        settings = dict(others)
        is_lcn = settings.pop("is_lcn", False)
        layer = layer_of(shape, fields, stride, **settings)
        P_x = grid(world, (1, 1, *lengths))
        array = GlobalArray(layer, lcn_layer_flag=is_lcn, partition=P_x)
        whole = integer_valued((3, 2, *shape), seed=1)
        assert P_x.index is not None
        places = [blocks[i] for blocks, i in zip(array.blocks, P_x.index[2:], strict=True)]
        block = whole[(slice(None), slice(None), *(slice(*each) for each in places))]
        chunk = array.get_fprop_view(block.flatten(1))
        local = array.local_array
        assert torch.equal(chunk, expected_chunk(whole, array).flatten(1))
        assert local.ifmshape == (local.height_with_halos, local.width_with_halos)
        assert (local.height, local.width) == tuple(block.shape[2:])
        assert local.height + local.hsr_north + local.hsr_south == local.height_with_halos
        assert local.width + local.hsc_west + local.hsc_east == local.width_with_halos
        assert torch.equal(array.get_local_acts(), block.flatten(1))
        assert torch.equal(array.get_fprop_view(block), chunk.view(3, 2, *local.ifmshape))
        error = integer_valued(chunk.shape, seed=2, rank=world.rank)
        check_adjoint(world, array.get_fprop_view, array.get_bprop_view, block.flatten(1), error)
        check_autograd_adjoint(world, array.get_fprop_view, block.flatten(1), error)
        check_autograd_adjoint(world, array.get_bprop_view, error, block.flatten(1))


@ranks(2)
def test_views_without_halos_are_what_was_given(world: World) -> None:
    """Blocks went through an exchange and a copy where each rank had all it needed."""
    P_x = grid(world, (1, 1, 2, 1))
    array = GlobalArray(layer_of((24, 24), (2, 2), 2), partition=P_x)
    x = integer_valued((3, 2 * 12 * 24), seed=1)
    assert array.is_local
    assert array.get_fprop_view(x) is x
    assert array.get_bprop_view(x) is x
    assert array.chunk_of(x) is x
    assert not GlobalArray(layer_of((22, 24), (2, 2), 2), partition=P_x).is_local
    assert not GlobalArray(layer_of((24, 24), (3, 3), 1), partition=P_x).is_local


@ranks(2, 4)
def test_volumes(world: World) -> None:
    lengths = (2, 1, 2) if world.size == 4 else (1, 2, 1)
    layer = layer_of((6, 7, 5), (3, 3, 2))
    array = GlobalArray(layer, partition=grid(world, lengths))
    whole = integer_valued((2, 2, 6, 7, 5), seed=1)
    index = array.partition.index
    assert index is not None
    places = [blocks[i] for blocks, i in zip(array.blocks, index[2:], strict=True)]
    block = whole[(slice(None), slice(None), *(slice(*each) for each in places))]
    chunk = array.get_fprop_view(block)
    assert torch.equal(chunk, expected_chunk(whole, array))
    error = integer_valued(chunk.shape, seed=2, rank=world.rank)
    check_adjoint(world, array.get_fprop_view, array.get_bprop_view, block, error)


@ranks(2)
def test_blocks_that_the_layer_before_has_left(world: World) -> None:
    """Sizes of blocks are told, and need not be balanced."""
    rows = 7 if world.rank == 0 else 3
    array = GlobalArray(layer_of((10, 6), (3, 3)), h=rows, w=6, partition=grid(world, (1, 1, 2, 1)))
    assert array.local_array.height == rows
    assert array.local_array.hsr_north == (0 if world.rank == 0 else 3)
    whole = integer_valued((1, 2, 10, 6), seed=1)
    block = whole[:, :, :7] if world.rank == 0 else whole[:, :, 7:]
    chunk = array.get_fprop_view(block.flatten(1))
    wanted = whole[:, :, :6] if world.rank == 0 else whole[:, :, 4:]
    assert torch.equal(chunk, wanted.flatten(1))
    rows = 7 if world.rank == 0 else 4
    with pytest.raises(ValueError, match=r"blocks of \[7, 4\] along dim 0 are 11 together"):
        GlobalArray(layer_of((10, 6), (3, 3)), h=rows, w=6, partition=array.partition)


@ranks(4)
def test_places_in_the_grid(world: World) -> None:
    def border(lengths: tuple[int, int]) -> int:
        array = GlobalArray(layer_of((12, 12), (3, 3)), partition=grid(world, (1, 1, *lengths)))
        local = array.local_array
        assert (local.top_left_row, local.top_left_col) == local.top_left
        assert (local.top_left_row_output, local.top_left_col_output) == local.top_left_output
        return local.border_id

    assert border((2, 2)) == [NORTHWEST, 4, 6, SOUTHEAST][world.rank]
    assert border((1, 4)) == NORTH
    assert {SINGLE, CENTER, EAST, WEST} == {-1, 8, 1, 3}
    default = GlobalArray(layer_of((12, 12), (3, 3)))
    assert default.grid == (2, 2)


@ranks(4)
def test_bad_arrays(world: World) -> None:
    P_x = grid(world, (1, 1, 4, 1))
    with pytest.raises(GridError, match=r"4 x 1.*3 x 10 outputs.*that fit: 2 x 2, 1 x 4"):
        GlobalArray(layer_of((5, 12), (3, 3)), partition=P_x)
    with pytest.raises(ValueError, match="stride 1"):
        GlobalArray(layer_of((12, 12), (3, 3), 2), lcn_layer_flag=True, partition=P_x)
    # It was made, and the first view failed with words of the exchange.
    padded = layer_of((12, 12), (3, 3))
    padded.padding = 3
    with pytest.raises(ValueError, match="padding has to be smaller than the filter"):
        GlobalArray(padded, partition=P_x)
    with pytest.raises(ValueError, match="it needs 3 axes"):
        GlobalArray(layer_of((8, 8, 8), (3, 3, 3)), partition=P_x)
    array = GlobalArray(layer_of((12, 12), (3, 3)), partition=P_x)
    with pytest.raises(ValueError, match=r"a block here is batch x 72 .*\[3, 70\]"):
        array.get_fprop_view(torch.zeros(3, 70))
    with pytest.raises(ValueError, match="a chunk here is batch x"):
        array.get_bprop_view(torch.zeros(3, 70))
