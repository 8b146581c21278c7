"""Halos beyond the edge: as torch pads the whole tensor, on any number of workers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from partition_kit import TRANSPORTS, block, draw_cases, grid, whole
from torch.nn import functional

from kadril import ops
from kadril.partition import Partition, balanced_intervals
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World

EDGES = ["zeros", "circular", "reflect", "replicate"]


def padded(x: torch.Tensor, width: tuple[int, int], edge: str) -> torch.Tensor:
    """The whole tensor with something beyond its edges, by torch."""
    (rows, columns), mode = width, "constant" if edge == "zeros" else edge
    sides = [columns, columns, rows, rows]
    return functional.pad(x[None, None], sides, mode=mode)[0, 0]


def check_halo(
    world: World, P_x: Partition, x: torch.Tensor, halo: list[tuple[int, int]], edge: str
) -> None:
    width = (max(0, *halo[0]), max(0, *halo[1]))
    assert P_x.index is not None
    slices = []
    for dim, position in enumerate(P_x.index):
        interval = balanced_intervals(x.shape[dim], P_x.shape[dim])[position]
        before, after = halo[dim]
        slices.append(
            slice(interval.start - before + width[dim], interval.stop + after + width[dim])
        )
    mine = block(x, P_x)
    got = ops.halo_exchange(mine, P_x, halo, edges=edge)
    assert torch.equal(got, padded(x, width, edge)[tuple(slices)]), (halo, edge)
    y = integer_valued(got.shape, seed=2, rank=world.rank)
    check_autograd_adjoint(world, lambda z: ops.halo_exchange(z, P_x, halo, edges=edge), mine, y)


@pytest.mark.parametrize("edge", EDGES)
@ranks(1, 4, transports=TRANSPORTS)
def test_as_torch_pads(world: World, edge: str) -> None:
    P_x = grid(world, (2, 2) if world.size == 4 else (1, 1))
    for halo in ([(1, 1), (0, 0)], [(2, 3), (4, 0)], [(4, 4), (5, 5)], [(-1, 1), (2, -2)]):
        check_halo(world, P_x, whole((5, 6)), halo, edge)


CASES = draw_cases(
    st.tuples(
        st.integers(6, 9),
        st.integers(6, 9),
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=2),
        st.sampled_from(EDGES),
        st.sampled_from([(6, 1), (3, 2), (2, 3), (1, 6)]),
    ),
    40,
)


@ranks(6)
def test_blocks_smaller_than_halos(world: World) -> None:
    for height, width, halo, edge, shape in CASES:
        check_halo(world, grid(world, shape), whole((height, width)), halo, edge)


@ranks(2)
def test_different_edges_along_different_dims(world: World) -> None:
    P_x = grid(world, (1, 2))
    x = whole((4, 4))
    got = ops.halo_exchange(block(x, P_x), P_x, [(1, 1), (1, 1)], edges=["circular", "replicate"])
    tall = torch.cat([x[-1:], x, x[:1]])
    wide = torch.cat([tall[:, :1], tall, tall[:, -1:]], dim=1)
    assert torch.equal(got, wide[:, 2 * world.rank : 2 * world.rank + 4])


@ranks(2)
def test_what_cannot_be(world: World) -> None:
    P_x = grid(world, (1, 2))
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="dim 1 has 4 elements, too few for 4 beyond its end"):
        ops.halo_exchange(x, P_x, [(0, 0), (0, 4)], edges="reflect")
    with pytest.raises(ValueError, match="an edge is one of zeros, circular"):
        ops.halo_exchange(x, P_x, [(0, 0), (0, 1)], edges="mirror")
    with pytest.raises(ValueError, match="1 edges for the 2 axes"):
        ops.halo_exchange(x, P_x, [(0, 0), (0, 1)], edges=["zeros"])
    with pytest.raises(ValueError, match="3 edges for the 2 axes"):
        ops.halo_exchange(x, P_x, [(0, 0), (0, 1)], periodic=[True] * 3)
    with pytest.raises(ValueError, match="dim 0 has 0 elements, too few for 1 beyond its end"):
        ops.halo_exchange(x[:0], P_x, [(1, 0), (0, 0)], edges="circular")
    assert ops.halo_exchange(x, P_x, [(0, 0), (0, 3)], edges="reflect").shape == (3, 5)
