"""The same inputs give the same bits on every transport."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

import pytest
import torch
from conformance import TRANSPORTS
from exact import DTYPE_NAMES, ops_of, torch_dtype

from kadril.testing import RankPool
from kadril.transport.base import Transport
from kadril.transport.tensor import tensor_bytes
from kadril.world import World

CASES = [(name, op) for name in DTYPE_NAMES for op in ops_of(name)]
COUNTS = (3, 500, 40_001)
CARRIERS = tuple(name for name in TRANSPORTS[1:] if name != "tiered")  # see test_tiered_bits.py


def random_values(name: str, seed: int, count: int) -> torch.Tensor:
    """Any bit pattern of integers; floats and complex numbers of many magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch_dtype(name)
    if dtype.is_floating_point or dtype.is_complex:
        real, imaginary = torch.randn(2, count, generator=generator, dtype=torch.float64)
        return torch.complex(real * 3, imaginary).to(dtype) if dtype.is_complex else real.to(dtype)
    data = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return data > 127 if dtype == torch.bool else data.view(dtype)


def digest_of_results(world: World) -> dict[str, str]:
    """A digest of what this rank gets, for each dtype and op."""
    return {
        f"{name} {op}": digest_case(world.transport, name, op, number)
        for number, (name, op) in enumerate(CASES)
    }


def digest_case(transport: Transport, name: str, op: str, number: int) -> str:
    digest = hashlib.sha256()
    for count in COUNTS:
        seed = 100 * number + transport.rank
        array = random_values(name, seed, count)
        scales = {"prescale": 0.37, "postscale": 1.9} if count == 500 else {}
        transport.allreduce(array, op, **scales)  # type: ignore[arg-type]
        digest.update(tensor_bytes(array).numpy())
        counts = [count // 2, *[0] * (transport.size - 2), count - count // 2]
        part = torch.zeros(counts[transport.rank], dtype=torch_dtype(name))
        transport.reduce_scatterv(random_values(name, seed, count), part, counts, op)  # type: ignore[arg-type]
        digest.update(tensor_bytes(part).numpy())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def shared_memory_digests(rank_pool: RankPool) -> Callable[[int], list[dict[str, str]]]:
    """Return what gives the digests over shared memory, by the size of the world."""
    return functools.cache(lambda size: rank_pool.run(size, digest_of_results, transport="shm"))


@pytest.mark.parametrize("size", [3, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("transport", CARRIERS, indirect=True)
def test_same_bits_as_shared_memory(
    rank_pool: RankPool,
    shared_memory_digests: Callable[[int], list[dict[str, str]]],
    transport: str,
    size: int,
) -> None:
    digests = rank_pool.run(size, digest_of_results, transport=transport)
    assert digests == shared_memory_digests(size)
