"""Ranks agree over every transport: what one finds wrong all raise, and all know whose it is."""

from __future__ import annotations

import pytest
import torch
from conformance import on_all_transports, on_some_ranks

from kadril.errors import CheckpointError, MismatchError
from kadril.transport.agreement import allgather_blobs, allgather_json, check_same, raise_on_all
from kadril.world import World


def works(world: World) -> bool:
    """Whether the group is as usable as before."""
    count = torch.ones(1)
    world.transport.allreduce(count)
    return count.item() == world.size


@on_all_transports
def test_bytes_of_every_rank(world: World) -> None:
    for length in (0, 1, 8, 63, 64, 65, 5000):
        mine = bytes((world.rank * 7 + place) % 251 for place in range(length))
        gathered = world.transport.allgather_bytes(mine, name="bytes")
        assert [len(each) for each in gathered] == [length] * world.size
        assert gathered[world.rank] == mine
        assert all(each[:1] == bytes([rank * 7])[:length] for rank, each in enumerate(gathered))


@on_some_ranks
def test_different_numbers_of_bytes_are_a_mismatch(world: World) -> None:
    with pytest.raises(MismatchError):
        world.transport.allgather_bytes(bytes(3 + world.rank), name="bytes")
    assert works(world)


@on_all_transports
def test_blobs_of_any_length(world: World) -> None:
    for base in (0, 1, 70_000):
        blobs = [bytes([rank]) * (base * rank) for rank in range(world.size)]
        assert allgather_blobs(world.transport, blobs[world.rank], "blobs") == blobs
    values = allgather_json(world.transport, {"rank": world.rank, "text": "ä" * world.rank}, "json")
    assert [value["rank"] for value in values] == list(range(world.size))


@on_all_transports
def test_an_error_of_one_rank_is_raised_by_all(world: World) -> None:
    """The rank itself raises it as it is, the others with its words; the group stays usable."""
    raise_on_all(world.transport, "save", None, CheckpointError)
    culprit = world.size - 1
    mine = OSError("disk full") if world.rank == culprit else None
    with pytest.raises((OSError, CheckpointError)) as caught:
        raise_on_all(world.transport, "save", mine, CheckpointError)
    if mine is None:
        assert type(caught.value) is CheckpointError
        assert str(caught.value) == f"save: rank {culprit} failed: disk full"
    else:
        assert caught.value is mine
    assert works(world)


@on_some_ranks
def test_errors_of_several_ranks_are_all_named(world: World) -> None:
    mine = None if world.rank == 0 else ValueError(f"of rank {world.rank}")
    with pytest.raises(ValueError, match="rank") as caught:
        raise_on_all(world.transport, "read", mine, ValueError)
    if world.rank == 0:
        more = ", ".join(map(str, range(2, world.size)))
        also = f" (so did ranks {more})" if more else ""
        assert str(caught.value) == f"read: rank 1 failed: of rank 1{also}"
    assert works(world)


@on_all_transports
def test_the_first_difference_is_shown_from_both_sides(world: World) -> None:
    check_same(world.transport, "build", ["weight [3]", "bias [3]"])
    if world.size == 1:
        return
    odd = world.size - 1
    lines = ["weight [3]", "bias [4]" if world.rank == odd else "bias [3]"]
    with pytest.raises(MismatchError) as caught:
        check_same(world.transport, "build", lines, advice="Look at the bias")
    assert str(caught.value) == (
        f"build: rank {odd} does not have what rank 0 has. Entry 1 is bias [3] on rank 0 and"
        f" bias [4] on rank {odd}. Look at the bias"
    )
    assert sorted(caught.value.calls) == list(range(world.size))
    with pytest.raises(MismatchError, match="Rank 0 has 1 more, the first is bias"):
        check_same(world.transport, "build", ["weight", "bias"][: 2 - (world.rank == odd)])
    assert works(world)
