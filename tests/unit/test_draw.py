"""`kadril.nn.draw`: pictures are made of the plans that layers run, for any partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

import pytest
import torch

import kadril
from kadril.nn.conv.layers import DistributedConv2d
from kadril.nn.conv.transpose import DistributedConvTranspose1d
from kadril.nn.drawing.draw import draw
from kadril.nn.drawing.plan import look_at
from kadril.nn.interpolation.upsample import DistributedUpsample
from kadril.nn.pool.max import DistributedMaxPool2d
from kadril.nn.primitives import HaloExchange, Repartition
from kadril.partition import Partition, world_partition
from kadril.world import World

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


def test_what_cannot_be_drawn(alone: World) -> None:
    with pytest.raises(TypeError, match="not Linear"):
        draw(torch.nn.Linear(2, 2), (2, 2))
    layer = DistributedConv2d(partition_of(alone, (1, 1, 2, 2)), 1, 1, 3)
    with pytest.raises(ValueError, match="3 dims"):
        draw(layer, (1, 8, 8))
