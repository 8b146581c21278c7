"""Every transport moves exactly what it is told to where it is told to."""

from __future__ import annotations

import numpy as np
import torch
from conformance import as_numpy, offsets, on_all_transports, on_some_ranks, uneven_counts
from exact import DTYPE_NAMES, inputs, same, torch_dtype

from kadril.transport.base import Message, Transport
from kadril.world import World

# Around the sizes at which transports change their way: what rides along in a meeting, what is sent
# to all at once, pages, and chunks that stay in cache.
LENGTHS = (0, 1, 2, 63, 64, 65, 4095, 4096, 4097, 16_384, 16_385, 262_144, 262_145, 1_048_583)


def letter(sender: int, receiver: int, length: int) -> torch.Tensor:
    """Bytes that tell who sent them to whom, and their place."""
    return ((torch.arange(length) * 7 + sender * 31 + receiver * 5) % 251).to(torch.uint8)


@on_all_transports
def test_broadcast_from_every_root(world: World) -> None:
    for root in range(world.size):
        for name in DTYPE_NAMES:
            array = inputs(name, "sum", world.rank, 29).reshape(1, 29)
            world.transport.broadcast(as_numpy(array) if root % 2 else array, root)
            assert same(array, inputs(name, "sum", root, 29).reshape(1, 29)), (name, root)


@on_all_transports
def test_broadcast_of_every_length(world: World) -> None:
    for length in LENGTHS:
        root = length % world.size
        array = letter(world.rank, 0, length)
        world.transport.broadcast(array, root)
        assert same(array, letter(root, 0, length)), length


@on_all_transports
def test_allgatherv_of_uneven_parts(world: World) -> None:
    counts = uneven_counts(world.size, 11)
    begin, end = offsets(counts)[world.rank : world.rank + 2]
    for name in DTYPE_NAMES:
        parts = [inputs(name, "max", rank, count) for rank, count in enumerate(counts)]
        out = torch.zeros(sum(counts), dtype=torch_dtype(name))
        world.transport.allgatherv(as_numpy(parts[world.rank]), as_numpy(out), counts)
        assert same(out, torch.cat(parts)), name
        out = torch.zeros(sum(counts), dtype=torch_dtype(name))
        out[begin:end] = parts[world.rank]
        world.transport.allgatherv(out[begin:end], out, counts)
        assert same(out, torch.cat(parts)), (name, "from its own part")


@on_all_transports
def test_allgatherv_of_every_length(world: World) -> None:
    for length in LENGTHS:
        counts = [length if rank % 2 == 0 else 3 for rank in range(world.size)]
        parts = [letter(rank, 0, count) for rank, count in enumerate(counts)]
        out = torch.zeros(sum(counts), dtype=torch.uint8)
        world.transport.allgatherv(parts[world.rank], out, counts)
        assert same(out, torch.cat(parts)), length


@on_all_transports
def test_alltoallv_of_uneven_parts(world: World) -> None:
    def count(sender: int, receiver: int) -> int:
        return 0 if (sender + receiver) % 3 == 1 else 5 + 2 * sender + receiver

    everyone, me = range(world.size), world.rank
    sends, recvs = [count(me, peer) for peer in everyone], [count(peer, me) for peer in everyone]
    for name in DTYPE_NAMES:

        def part(sender: int, receiver: int, name: str = name) -> torch.Tensor:
            return inputs(name, "sum", sender + 4 * receiver, count(sender, receiver))

        array = torch.cat([part(me, peer) for peer in everyone])
        out = torch.zeros(sum(recvs), dtype=torch_dtype(name))
        world.transport.alltoallv(as_numpy(array), sends, as_numpy(out), recvs)
        assert same(out, torch.cat([part(peer, me) for peer in everyone])), name


@on_all_transports
def test_alltoallv_of_every_length(world: World) -> None:
    everyone, me = range(world.size), world.rank
    for length in LENGTHS:
        sends = [length if peer == (me + 1) % world.size else 1 for peer in everyone]
        recvs = [length if me == (peer + 1) % world.size else 1 for peer in everyone]
        array = torch.cat([letter(me, peer, sends[peer]) for peer in everyone])
        out = torch.zeros(sum(recvs), dtype=torch.uint8)
        world.transport.alltoallv(array, sends, out, recvs)
        assert same(out, torch.cat([letter(peer, me, recvs[peer]) for peer in everyone])), length


def exchange_letters(
    transport: Transport, to: list[int], by: list[int], lengths: list[int]
) -> None:
    """Send one message of each length to each of `to`, receive as many from each of `by`."""
    me = transport.rank
    sends: list[Message] = [
        (peer, letter(me, peer, length) ^ i) for i, length in enumerate(lengths) for peer in to
    ]
    recvs: list[Message] = [
        (peer, torch.zeros(length, dtype=torch.uint8)) for length in lengths for peer in by
    ]
    transport.exchange(sends, recvs)
    wanted = [letter(peer, me, length) ^ i for i, length in enumerate(lengths) for peer in by]
    for (peer, memory), reference in zip(recvs, wanted, strict=True):
        assert same(memory, reference), f"{len(reference)} bytes from {peer}"


@on_all_transports
def test_exchange_in_a_ring(world: World) -> None:
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for length in LENGTHS:
        exchange_letters(world.transport, [after], [before], [length])


@on_all_transports
def test_exchange_patterns(world: World) -> None:
    transport, me, everyone = world.transport, world.rank, list(range(world.size))
    exchange_letters(transport, [me], [me], [100])  # to oneself
    exchange_letters(transport, everyone, everyone, [100])  # all pairs
    exchange_letters(transport, everyone[::-1], everyone, [40, 100, 8])  # several to each
    exchange_letters(transport, everyone, everyone[::-1], [0, 30, 0])  # with empty ones between
    exchange_letters(transport, [], [], [])  # nobody
    exchange_letters(transport, everyone, everyone, [100_000, 7])
    # A line, as a halo has it: the ends have one neighbour, and all send to both sides at once.
    neighbours = [peer for peer in (me - 1, me + 1) if 0 <= peer < world.size]
    exchange_letters(transport, neighbours, neighbours, [300, 300])
    # One rank gives to all others, which give nothing.
    to, by = (everyone[1:], []) if me == 0 else ([], [0])
    exchange_letters(transport, to, by, [5000])


@on_all_transports
def test_exchange_of_mixed_dtypes(world: World) -> None:
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    sends: list[Message] = [(after, inputs(name, "sum", world.rank, 9)) for name in DTYPE_NAMES]
    recvs: list[Message] = [(before, torch.zeros(9, dtype=torch_dtype(n))) for n in DTYPE_NAMES]
    world.transport.exchange(sends, recvs)
    for name, (_, memory) in zip(DTYPE_NAMES, recvs, strict=True):
        assert same(memory, inputs(name, "sum", before, 9)), name


@on_all_transports
def test_a_barrier_is_passed_only_when_all_have_come(world: World) -> None:
    # Each rank counts itself in an array of rank 0 before the barrier; after it all must be there.
    for turn in range(3):
        stamps = np.zeros(world.size, dtype=np.int64)
        stamps[world.rank] = turn + 1
        world.transport.barrier()
        world.transport.allreduce(stamps, "max")
        assert stamps.tolist() == [turn + 1] * world.size


@on_some_ranks
def test_what_collectives_write_is_no_operation_that_autograd_counts(world: World) -> None:
    """A small sum over tiers was one: a batch norm refused its backward pass, on some ranks."""
    for count in (3, 500, 30_000):
        array, out = torch.ones(count), torch.empty(count * world.size)
        before = (array._version, out._version)
        world.transport.allreduce(array)
        world.transport.broadcast(array, 0)
        world.transport.reduce(array, 1)
        world.transport.allgatherv(array, out, [count] * world.size)
        world.transport.alltoallv(
            out, [count] * world.size, torch.empty_like(out), [count] * world.size
        )
        assert (array._version, out._version) == before
