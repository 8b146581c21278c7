"""Mistakes that one rank can see by itself are raised at once, on that rank, and nobody waits."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from conformance import on_all_transports

from kadril.errors import UnsupportedError
from kadril.transport.base import Op
from kadril.world import World


@on_all_transports
def test_roots_and_peers_that_do_not_exist(world: World) -> None:
    transport, array = world.transport, torch.zeros(3)
    for rank in (-1, world.size, 2**40):
        with pytest.raises(ValueError, match=f"root is {rank}"):
            transport.broadcast(array, rank)
        with pytest.raises(ValueError, match=f"root is {rank}"):
            transport.reduce(array, rank)
        with pytest.raises(ValueError, match="peer in sends"):
            transport.exchange([(rank, array)], [])
        with pytest.raises(ValueError, match="peer in recvs"):
            transport.exchange([], [(rank, array)])
    with pytest.raises(TypeError, match="root must be an integer, got float"):
        transport.broadcast(array, cast("int", 0.0))
    transport.barrier()


@on_all_transports
def test_ops_that_do_not_exist(world: World) -> None:
    with pytest.raises(ValueError, match="no op 'mean'; use one of sum"):
        world.transport.allreduce(torch.zeros(3), cast("Op", "mean"))
    world.transport.barrier()


@on_all_transports
def test_counts_that_do_not_fit(world: World) -> None:
    transport, size, me = world.transport, world.size, world.rank
    array, whole, ones = torch.zeros(1), torch.zeros(size), [1] * size
    with pytest.raises(ValueError, match=f"has {size + 1} entries; this group has {size} ranks"):
        transport.allgatherv(array, whole, [*ones, 1])
    with pytest.raises(ValueError, match="less than 0"):
        transport.allgatherv(array, whole, [-1] * size)
    with pytest.raises(ValueError, match=rf"array has 2 elements, but counts\[{me}\] is 1"):
        transport.allgatherv(torch.zeros(2), whole, ones)
    with pytest.raises(ValueError, match="out has 9 elements, but counts add up to"):
        transport.allgatherv(array, torch.zeros(9), ones)
    with pytest.raises(ValueError, match="array has 9 elements, but counts add up to"):
        transport.reduce_scatterv(torch.zeros(9), array, ones)
    with pytest.raises(ValueError, match="out has 2 elements"):
        transport.reduce_scatterv(whole, torch.zeros(2), ones)
    with pytest.raises(ValueError, match="send_counts add up to"):
        transport.alltoallv(torch.zeros(9), ones, whole.clone(), ones)
    with pytest.raises(ValueError, match="recv_counts add up to"):
        transport.alltoallv(whole, ones, torch.zeros(9), ones)
    more = [2 if rank == me else 1 for rank in range(size)]
    with pytest.raises(ValueError, match="sends to itself"):
        transport.alltoallv(torch.zeros(size + 1), more, whole.clone(), ones)
    with pytest.raises(TypeError, match=r"counts\[0\] must be an integer"):
        transport.allgatherv(array, whole, cast("list[int]", [1.0] * size))
    transport.barrier()


@on_all_transports
def test_memory_of_the_wrong_kind(world: World) -> None:
    transport, array = world.transport, torch.zeros(4)
    with pytest.raises(TypeError, match="array is float32 and out is float64"):
        transport.allreduce(array, out=torch.zeros(4, dtype=torch.float64))
    with pytest.raises(ValueError, match="array has 4 elements, out has 5"):
        transport.allreduce(array, out=torch.zeros(5))
    with pytest.raises(TypeError, match="expected a torch tensor or a numpy array, got list"):
        transport.allreduce(cast("Any", [1.0]))
    with pytest.raises(ValueError, match="not contiguous"):
        transport.allreduce(torch.zeros(4, 4).t())
    with pytest.raises(ValueError, match="not contiguous"):
        transport.allreduce(np.zeros((4, 4)).T)
    with pytest.raises(UnsupportedError, match="float8_e4m3fn is not supported"):
        transport.allreduce(torch.zeros(4, dtype=torch.float8_e4m3fn))
    with pytest.raises(UnsupportedError, match=r"datetime64.* is not supported"):
        transport.broadcast(np.zeros(4, dtype="datetime64[s]"), 0)
    with pytest.raises(UnsupportedError, match=">f4 is not supported"):
        transport.broadcast(np.zeros(4, dtype=">f4"), 0)
    with pytest.raises(UnsupportedError, match="tensor on meta"):
        transport.broadcast(torch.zeros(4, device="meta"), 0)
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        transport.broadcast(frozen, 0)
    with pytest.raises(ValueError, match="resolve_conj"):
        # A lazy conjugate shares its memory with the tensor, which would be sent as it is.
        transport.allreduce(torch.zeros(4, dtype=torch.complex64).conj())
    transport.barrier()


@on_all_transports
def test_memory_that_overlaps(world: World) -> None:
    transport, size, me = world.transport, world.size, world.rank
    memory, ones = torch.zeros(10), [1] * size
    with pytest.raises(ValueError, match="overlaps"):
        transport.allreduce(memory[:6], out=memory[4:])
    with pytest.raises(ValueError, match="overlaps"):
        transport.alltoallv(memory[:size], ones, memory[:size], ones)
    if size > 1:
        other = (me + 1) % size  # whose part is not this rank's to give from
        with pytest.raises(ValueError, match="overlaps"):
            transport.allgatherv(memory[other : other + 1], memory[:size], ones)
        with pytest.raises(ValueError, match="overlaps"):
            transport.reduce_scatterv(memory[:size], memory[other : other + 1], ones)
    with pytest.raises(ValueError, match="overlaps other memory of this exchange"):
        transport.exchange([(me, memory[:4])], [(me, memory[2:6])])
    with pytest.raises(ValueError, match="overlaps other memory of this exchange"):
        transport.exchange(
            [(me, torch.zeros(4)), (me, torch.zeros(4))], [(me, memory[:4]), (me, memory[3:7])]
        )
    transport.allreduce(memory, out=memory)
    # One memory may be sent twice.
    transport.exchange([(me, memory)] * 2, [(me, torch.zeros(10)), (me, torch.zeros(10))])


@on_all_transports
def test_messages_to_oneself_that_do_not_match(world: World) -> None:
    transport, me = world.transport, world.rank
    with pytest.raises(ValueError, match=r"sends \[float32\[3\]\] to itself but receives \[\]"):
        transport.exchange([(me, torch.zeros(3))], [])
    with pytest.raises(ValueError, match="from itself"):
        transport.exchange([(me, torch.zeros(3))], [(me, torch.zeros(4))])
    with pytest.raises(TypeError, match=r"list of pairs \(peer, memory\)"):
        transport.exchange(cast("Any", [3]), [])
    transport.barrier()


@on_all_transports
def test_colors_and_keys_that_are_no_numbers(world: World) -> None:
    with pytest.raises(TypeError, match="color must be an integer, got str"):
        world.transport.split(cast("int", "red"))
    with pytest.raises(TypeError, match="key must be an integer"):
        world.transport.split(0, key=cast("int", 1.5))
    with pytest.raises(ValueError, match="64 bits"):
        world.transport.split(2**63)
    world.transport.barrier()
