"""The c10d transport beyond what all transports have in common."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_in_threads

from kadril.config import Config
from kadril.errors import RendezvousError
from kadril.transport import c10d
from kadril.transport.c10d import C10dTransport, plain_words


def sum_everything(transport: C10dTransport) -> list[float]:
    """An all-reduce of each way: in the meeting, to all at once, in parts."""
    totals = []
    for count in (1, 1000, 50_021):
        array = torch.full((count,), float(transport.rank + 1))
        transport.allreduce(array)
        assert len(array.unique()) == 1
        totals.append(array[0].item())
    return totals


@pytest.mark.parametrize("size", [1, 2, 5, 7])
def test_any_number_of_ranks(size: int) -> None:
    total = size * (size + 1) / 2
    assert run_in_threads(size, sum_everything) == [[total] * 3] * size


def test_a_group_of_one_needs_no_connection() -> None:
    store = dist.HashStore()
    transport = C10dTransport.open(store, 0, 1, world_ranks=[3], config=Config())
    assert sum_everything(transport) == [1.0] * 3
    assert store.num_keys() == 0


def test_a_rank_that_does_not_come_to_the_rendezvous_is_named() -> None:
    store = dist.HashStore()
    with pytest.raises(RendezvousError, match=r"ranks 11, 12 of 3 did not come within 0.3 s"):
        C10dTransport.open(
            store, 0, 3, world_ranks=[10, 11, 12], config=Config(connect_timeout=0.3)
        )


def test_world_ranks_must_fit() -> None:
    with pytest.raises(ValueError, match=r"rank 0 of 2 does not fit the world ranks \[0\]"):
        C10dTransport.open(dist.HashStore(), 0, 2, world_ranks=[0], config=Config())


def test_the_users_default_group_is_left_alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert run_in_threads(2, sum_everything) == [[3.0] * 3] * 2
        mine = torch.ones(1)
        dist.all_reduce(mine)
        assert mine.item() == 1.0
    finally:
        dist.destroy_process_group()
    # And the other way round: kadril first, the user's group after it.
    inside = threading.Barrier(2)

    def while_open(transport: C10dTransport) -> bool:
        if transport.rank == 0:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            dist.destroy_process_group()
        inside.wait(20.0)
        return sum_everything(transport) == [3.0] * 3

    assert run_in_threads(2, while_open) == [True, True]


def test_groups_that_ranks_have_made_unequally_often() -> None:
    # dist.new_group(use_local_synchronization=True) names a group by how many groups the process
    # has, so ranks that sat out a split would wait for each other under different names.
    def split_twice(transport: C10dTransport) -> int:
        pair = transport.split(0 if transport.rank < 2 else None)
        whole = transport.split(0)
        assert whole is not None
        whole.barrier()
        whole.close()
        if pair is not None:
            pair.close()
        return whole.size

    assert run_in_threads(3, split_twice) == [3, 3, 3]


def test_a_rank_that_is_done_may_leave_while_others_still_move_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The ranks that go on see its note; it must not be taken for a rank that failed them.
    monkeypatch.setattr(c10d, "SLICE", timedelta(milliseconds=1))
    monkeypatch.setattr(c10d, "PROBE_INTERVAL", 0.0)

    def exchange(transport: C10dTransport) -> float:
        if transport.rank == 2:
            transport.exchange([], [])
            transport.close()
            return 1.0
        other = 1 - transport.rank
        memory = torch.zeros(8_000_000)
        transport.exchange([(other, torch.ones(8_000_000))], [(other, memory)])
        return memory.mean().item()

    assert run_in_threads(3, exchange) == [1.0, 1.0, 1.0]


def test_an_error_in_the_middle_of_a_call_frees_the_others() -> None:
    # A rank that fails between the meeting and the packets would leave the others in recv.
    class BrokenError(Exception):
        pass

    def one_breaks(transport: C10dTransport) -> str:
        if transport.rank == 1:

            def broken(*_: object) -> None:
                raise BrokenError

            transport._exchange = broken  # type: ignore[method-assign]
        try:
            transport.allreduce(torch.zeros(5000))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    first, second, third = run_in_threads(3, one_breaks)
    assert second == "BrokenError: "
    for text in (first, third):
        assert text.startswith("Revoked: ")
        assert "rank 11 gave the group up: BrokenError in allreduce(float32[5000], sum)" in text


def test_what_gloo_says_is_cut_to_the_point() -> None:
    words = (
        "[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:18313. This is"
        " typically caused by a remote worker crashing. Check the logs of the remote worker before"
        " reporting an error."
    )
    assert plain_words(words) == "Connection closed by peer [127.0.0.1]:18313"
    assert plain_words("something else") == "something else"
