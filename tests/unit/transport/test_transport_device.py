"""Collectives on devices, with gloo in place of a device's backend, and the CPU as the device."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_in_threads

from kadril.config import Config
from kadril.errors import MismatchError, UnsupportedError
from kadril.transport.buffer import Array
from kadril.transport.device import DeviceTransport


class EveryTensorIsOnADevice(DeviceTransport):
    """Takes the way of device memory for all tensors."""

    def _is_ours(self, array: Array) -> bool:
        return True


def make(store: dist.Store, rank: int, size: int, config: Config) -> DeviceTransport:
    return EveryTensorIsOnADevice(store, rank, size, range(size), config, "127.0.0.1", "gloo")


def reduce_all_ways(transport: DeviceTransport) -> list[list[float]]:
    me = transport.rank
    array = torch.arange(4.0) + me
    out = torch.zeros(4)
    transport.allreduce(array, out=out, prescale=2.0, postscale=0.5)
    assert array.tolist() == [me, me + 1, me + 2, me + 3]
    largest = array.clone()
    transport.reduce(largest, 1, "max")
    counts = [1, 0, 3]
    part = torch.zeros(counts[me])
    transport.reduce_scatterv(array, part, counts)
    return [out.tolist(), largest.tolist(), part.tolist()]


def test_reductions() -> None:
    first, second, third = run_in_threads(3, reduce_all_ways, make=make)
    assert first == [[3.0, 6.0, 9.0, 12.0], [0.0, 1.0, 2.0, 3.0], [3.0]]
    assert second == [[3.0, 6.0, 9.0, 12.0], [2.0, 3.0, 4.0, 5.0], []]
    assert third == [[3.0, 6.0, 9.0, 12.0], [2.0, 3.0, 4.0, 5.0], [6.0, 9.0, 12.0]]


def move_all_ways(transport: DeviceTransport) -> list[list[int]]:
    me, size = transport.rank, transport.size
    sent = torch.full((2,), me)
    transport.broadcast(sent, 2)
    counts = [2, 0, 1]
    gathered = torch.zeros(3, dtype=torch.int64)
    transport.allgatherv(torch.full((counts[me],), 10 + me), gathered, counts)
    arrived = torch.zeros(size, dtype=torch.int64)
    transport.alltoallv(torch.arange(size) + 10 * me, [1] * size, arrived, [1] * size)
    halo = torch.zeros(2, dtype=torch.int64)
    transport.exchange([((me + 1) % size, sent + me)], [((me - 1) % size, halo)])
    group = transport.split(0 if me else None)
    if group is not None:
        assert isinstance(group, DeviceTransport)
        group.barrier()
        group.close()
    return [sent.tolist(), gathered.tolist(), arrived.tolist(), halo.tolist()]


def test_movements() -> None:
    gathered = [10, 10, 12]
    assert run_in_threads(3, move_all_ways, make=make) == [
        [[2, 2], gathered, [0, 10, 20], [4, 4]],
        [[2, 2], gathered, [1, 11, 21], [2, 2]],
        [[2, 2], gathered, [2, 12, 22], [3, 3]],
    ]


def test_alone() -> None:
    def check(transport: DeviceTransport) -> list[float]:
        array, out = torch.arange(3.0), torch.zeros(3)
        transport.allreduce(array, postscale=2.0)
        transport.alltoallv(array, [3], out, [3])
        transport.broadcast(out, 0)
        return out.tolist()

    assert run_in_threads(1, check, make=make) == [[0.0, 2.0, 4.0]]


def test_calls_are_compared_before_the_engine_sees_them() -> None:
    def differ(transport: DeviceTransport) -> str:
        with pytest.raises(MismatchError) as caught:
            transport.allreduce(torch.zeros(3 + transport.rank))
        transport.barrier()
        return str(caught.value)

    for text in run_in_threads(2, differ, make=make):
        assert "rank 0: allreduce(float32[3] on cpu, sum)" in text
        assert "rank 1: allreduce(float32[4] on cpu, sum)" in text


def test_what_the_engine_cannot_do_is_refused_on_all_ranks() -> None:
    def unsupported(transport: DeviceTransport) -> str:
        with pytest.raises(UnsupportedError) as caught:
            transport.allreduce(torch.zeros(3, dtype=torch.uint16))  # gloo knows no such dtype
        transport.barrier()
        return str(caught.value)

    for text in run_in_threads(2, unsupported, make=make):
        assert "allreduce(uint16[3] on cpu, sum): gloo cannot do that" in text


def test_numpy_arrays_are_no_device_memory() -> None:
    def check(transport: DeviceTransport) -> None:
        with pytest.raises(TypeError, match="expected a torch tensor"):
            transport.allreduce(torch.zeros(3).numpy())

    assert run_in_threads(1, check, make=make) == [None]


def test_a_backend_that_this_torch_does_not_have() -> None:
    with pytest.raises(UnsupportedError, match="no backend 'nosuch', only gloo"):
        DeviceTransport(dist.HashStore(), 0, 1, [0], Config(), "", "nosuch")
