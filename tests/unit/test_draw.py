"""`kadril.nn.draw`: pictures are made of the plans that layers run, for any partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import kadril
from kadril.nn.conv.layers import DistributedConv2d
from kadril.nn.conv.transpose import DistributedConvTranspose1d
from kadril.nn.drawing.channel_picture import look_at_channels
from kadril.nn.drawing.draw import draw
from kadril.nn.drawing.picture import look_at
from kadril.nn.interpolation.upsample import DistributedUpsample
from kadril.nn.pool.max import DistributedMaxPool2d
from kadril.nn.primitives import HaloExchange, Repartition
from kadril.partition import Interval, Partition, world_partition
from kadril.world import World

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def alone() -> Iterator[World]:
    yield kadril.init()
    kadril.shutdown()


def partition_of(world: World, shape: Sequence[int]) -> Partition:
    """A partition of ranks that there are not: nothing is sent for a picture."""
    root = world_partition(world).root
    return Partition(root, None, range(torch.Size(shape).numel()), shape)


def elements(text: str, kind: str, name: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(text).iter(f"{SVG}{kind}")  # noqa: S314 - our own text
    return [element for element in found if element.get("class") == name]


def test_a_convolution(alone: World) -> None:
    layer = DistributedConv2d(partition_of(alone, (1, 1, 2, 2)), 1, 1, 5, padding=2)
    picture = look_at(layer, (1, 1, 16, 20))
    first = picture.views[0]
    assert first.messages == {1: 8 * 2, 2: 2 * 10, 3: 2 * 2}
    assert [first.halo(dim) for dim in range(4)] == [(0, 0), (0, 0), (2, 2), (2, 2)]
    assert sum(len(view.messages) for view in picture.views) == 12

    text = draw(layer, (1, 1, 16, 20))
    assert len(elements(text, "rect", "block")) == 4
    assert len(elements(text, "rect", "halo")) == 4
    assert len(elements(text, "line", "message")) == 12
    assert "12 messages with 160 elements in all" in text
    assert "rank 3: sends 4 to 0, 20 to 1, 16 to 2; halo dim 2: 2+2, dim 3: 2+2" in text


def test_halos_are_as_wide_as_they_are_needed(alone: World) -> None:
    pool = DistributedMaxPool2d(partition_of(alone, (1, 1, 3, 1)), 2)
    halos = [view.halo(2) for view in look_at(pool, (1, 4, 20, 6)).views]
    # 20 rows are 7 + 7 + 6, and the 10 rows of the result 4 + 3 + 3.
    assert halos == [(0, 1), (-1, 0), (0, 0)]
    wide = HaloExchange(partition_of(alone, (4,)), [(5, 0)], "circular")
    assert [len(view.messages) for view in look_at(wide, (8,)).views] == [3, 3, 3, 3]
    up = DistributedUpsample(partition_of(alone, (1, 1, 2, 1)), scale_factor=2, mode="bilinear")
    assert [view.halo(2) for view in look_at(up, (1, 1, 8, 8)).views] == [(0, 1), (1, 0)]
    back = DistributedConvTranspose1d(partition_of(alone, (1, 1, 2)), 1, 1, 3, stride=2)
    assert draw(back, (1, 1, 9)).startswith("<svg")


def test_a_repartition(alone: World) -> None:
    before, after = partition_of(alone, (1, 1, 2, 2)), partition_of(alone, (4, 1, 1, 1))
    text = draw(Repartition(before, after), (8, 1, 15, 20))
    assert len(elements(text, "rect", "block")) == 8
    assert len(elements(text, "line", "message")) == 12
    assert "on 1 x 1 x 2 x 2 to 4 x 1 x 1 x 1" in text
    assert "12 messages with 1800 elements in all" in text  # three quarters of 8 * 15 * 20


def split_channels(world: World) -> DistributedConv2d:
    before, after = partition_of(world, (1, 2, 2, 1)), partition_of(world, (1, 3, 2, 1))
    weight = partition_of(world, (3, 2, 2, 1))
    return DistributedConv2d(before, 4, 6, 3, padding=1, P_y=after, P_w=weight)


def test_figures_of_the_guide_are_what_draw_gives(alone: World) -> None:
    """Figures are made anew by writing the texts where this reads them."""
    halo = DistributedConv2d(partition_of(alone, (1, 1, 2, 2)), 1, 1, 5, padding=2)
    for name, text in {
        "halo.svg": draw(halo, (1, 1, 16, 20)),
        "channels.svg": draw(split_channels(alone), (1, 4, 16, 20)),
    }.items():
        assert (FIGURES / name).read_text() == text + "\n"


def test_split_channels(alone: World) -> None:
    """Two blocks of input channels, three of output channels, rows in two."""
    layer = split_channels(alone)
    picture = look_at_channels(layer, (1, 4, 16, 20))
    assert [view.halo(2) for view in picture.halo.views] == [(1, 1)] * 4
    assert picture.output_shape == (1, 6, 16, 20)
    assert [rank for rank, _ in picture.weights] == [0, 2, 4, 6, 8, 10]  # not the second rows
    assert picture.weights[3] == (6, [Interval(2, 4), Interval(2, 4)])
    # Worker (i, s) of P_x is rank 2 i + s, and worker (o, i, s) of P_w is rank 4 o + 2 i + s.
    sent = {(source, target) for source, target, _ in picture.broadcasts}
    wanted = {(2 * i + s, 4 * o + 2 * i + s) for o in range(3) for i in range(2) for s in range(2)}
    assert sent == {(source, target) for source, target in wanted if source != target}
    assert {each.num_elements for each in picture.broadcasts} == {2 * (8 + 2) * 20}
    sums = {(source, target) for source, target, _ in picture.sums}
    wanted = {(4 * o + 2 * i + s, 2 * o + s) for o in range(3) for i in range(2) for s in range(2)}
    assert sums == {(source, target) for source, target in wanted if source != target}
    assert {each.num_elements for each in picture.sums} == {2 * 8 * 20}

    text = draw(layer, (1, 4, 16, 20))
    assert len(elements(text, "rect", "block")) == 4 + 6 + 6
    assert "inputs to weights: 8 messages with 3200 elements in all" in text
    assert "sums: 10 messages with 3200 elements in all" in text


def test_transposed_with_split_channels(alone: World) -> None:
    before, after = partition_of(alone, (1, 2, 1)), partition_of(alone, (1, 1, 1))
    layer = DistributedConvTranspose1d(
        before, 4, 3, 3, 2, output_padding=1, P_y=after, P_w=partition_of(alone, (1, 2, 1))
    )
    picture = look_at_channels(layer, (1, 4, 5))
    assert picture.output_shape == (1, 3, 12)
    assert picture.broadcasts == []
    assert picture.sums == [(1, 0, 3 * 12)]
    assert len(elements(draw(layer, (1, 4, 5)), "rect", "block")) == 2 + 2 + 1


def test_what_cannot_be_drawn(alone: World) -> None:
    with pytest.raises(TypeError, match="not Linear"):
        draw(torch.nn.Linear(2, 2), (2, 2))
    layer = DistributedConv2d(partition_of(alone, (1, 1, 2, 2)), 1, 1, 3)
    with pytest.raises(ValueError, match="3 dims"):
        draw(layer, (1, 8, 8))
