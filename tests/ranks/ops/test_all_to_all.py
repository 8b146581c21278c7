"""All-to-all: right values along any two dims, uneven parts, the way back as adjoint."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import strategies as st
from partition_kit import TRANSPORTS, block, draw_cases, grid, whole

from kadril import ops
from kadril.errors import MismatchError
from kadril.partition import balanced_sizes
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World


@ranks(1, 4, transports=TRANSPORTS)
def test_blocks_along_one_dim_become_blocks_along_another(world: World) -> None:
    """Such a move is a repartition of the line."""
    x = whole((6, 7, 5))
    P_x, P_y = grid(world, (world.size, 1, 1)), grid(world, (1, world.size, 1))
    there = partial(ops.all_to_all, P_x=P_x, axis=0, split_dim=1, concat_dim=0)
    back = partial(ops.all_to_all, P_x=P_x, axis=0, split_dim=-3, concat_dim=-2)
    mine = block(x, P_x)
    got = there(mine)
    assert torch.equal(got, block(x, P_y))
    assert torch.equal(back(got), mine)
    check_autograd_adjoint(world, there, mine, integer_valued(got.shape, seed=4, rank=world.rank))


CASES = draw_cases(
    st.tuples(
        st.integers(0, 2),  # split_dim
        st.integers(0, 2),  # concat_dim
        st.lists(st.integers(0, 4), min_size=3, max_size=3),  # sizes along concat_dim, by worker
        st.lists(st.integers(0, 5), min_size=3, max_size=3),  # sizes of all dims
        st.booleans(),  # whether the parts are given
    ),
    80,
)


@ranks(3)
def test_parts_of_any_sizes(world: World) -> None:
    P_x = grid(world, (3,))
    for split_dim, concat_dim, lengths, shape, wants_given in CASES:
        is_given = wants_given and split_dim != concat_dim
        parts, cuts = [], []
        for rank, length in enumerate(lengths):
            mine = [*shape[:concat_dim], length, *shape[concat_dim + 1 :]]
            parts.append(integer_valued(mine, seed=2, rank=rank))
            size = mine[split_dim]
            cuts.append([size, 0, 0] if is_given else balanced_sizes(size, 3))
        expected = torch.cat(
            [
                torch.split(part, cut, split_dim)[world.rank]
                for part, cut in zip(parts, cuts, strict=True)
            ],
            concat_dim,
        )
        function = partial(
            ops.all_to_all,
            P_x=P_x,
            axis=0,
            split_dim=split_dim,
            concat_dim=concat_dim,
            sizes=cuts[0] if is_given else None,
        )
        got = function(parts[world.rank])
        assert torch.equal(got, expected)
        y = integer_valued(got.shape, seed=3, rank=world.rank)
        check_autograd_adjoint(world, function, parts[world.rank], y)


@ranks(2)
def test_what_does_not_fit(world: World) -> None:
    P_x = grid(world, (2, 1))
    with pytest.raises(MismatchError, match=r"but for dim 1.*\[3, 2\] on rank 1"):
        ops.all_to_all(torch.zeros(2 + world.rank, 2), P_x, 0, 0, 1)
    with pytest.raises(ValueError, match="no axis 2"):
        ops.all_to_all(torch.zeros(2, 2), P_x, 2, 0, 1)
    with pytest.raises(ValueError, match="no dim 2"):
        ops.all_to_all(torch.zeros(2, 2), P_x, 0, 0, 2)
    with pytest.raises(ValueError, match=r"sizes \[1, 2\]"):
        ops.all_to_all(torch.zeros(2, 2), P_x, 0, 0, 1, sizes=[1, 2])
    assert ops.all_to_all(torch.zeros(2, 2), P_x, 0, 0, 1).shape == (1, 4)
