"""The ways to reduce a flat tensor over all ranks: those of the modes, and two to compare with.

    way        moves                                                        for
    tiers      all-reduce of the world's transport                          modes b, n, c
    flat       all-reduce that does not know of hosts                       mode r; mpi=True
    scatter    reduce-scatter, then all-gather                              mode m
    mpi        MPI_Allreduce                                                mpi=True, check
    in order   all-to-all, additions by numpy in rank order, all-gather     check without MPI

The last one shares no kernel and no order of additions with the others: a reference that is made by
the code under test says nothing about it. On one host "tiers" and "flat" are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kadril.partition import balanced_sizes
from kadril.transport.base import Transport
from kadril.world import World

__all__ = [
    "Way",
    "baseline_of",
    "reference_of",
    "tier_times",
    "ways_of",
    "widened",
]

Values = npt.NDArray[Any]


class Way(NamedTuple):
    """A way to reduce.

    Attributes:
        name: shown to people.
        transport: over which its ranks meet and compare their calls; None where they do neither.
        run: adds up a contiguous flat tensor over all ranks, in place, and multiplies the sum by a
            factor; its third argument is the name of the call.
    """

    name: str
    transport: Transport | None
    run: Callable[[torch.Tensor, float, str], None]


def ways_of(world: World, flat: Transport) -> dict[str, Way]:
    """The ways of the modes, by the word for each in `options.ALGORITHMS`.

    Args:
        world: whose ranks reduce.
        flat: a transport between them that does not know of hosts; that of the world, on one host.
    """
    return {
        "tiers": whole_way(world.transport),
        "flat": whole_way(flat),
        "scatter": scatter_way(world.transport),
    }


def baseline_of(world: World, flat: Transport) -> Way:
    """Return the way of `mpi=True`: MPI_Allreduce where MPI started the ranks, else `flat`."""
    return mpi_way(world) if world.communicator is not None else whole_way(flat)


def reference_of(world: World, flat: Transport) -> Way:
    """Return the way whose results `check` compares with."""
    return mpi_way(world) if world.communicator is not None else in_order_way(flat)


def tier_times(way: Way) -> dict[str, float]:
    """Seconds that the last call spent in each tier; nothing where the transport does not tell."""
    return {} if way.transport is None else dict(way.transport.tier_times)


def whole_way(transport: Transport) -> Way:
    """All-reduce as the transport does it."""

    def run(flat: torch.Tensor, scale: float, name: str) -> None:
        transport.allreduce(flat, "sum", postscale=scale, name=name)

    return Way(f"{transport.kind} all-reduce", transport, run)


def scatter_way(transport: Transport) -> Way:
    """Reduce-scatter, then all-gather."""

    def run(flat: torch.Tensor, scale: float, name: str) -> None:
        counts = balanced_sizes(flat.numel(), transport.size)
        begin = sum(counts[: transport.rank])
        mine = flat[begin : begin + counts[transport.rank]]
        transport.reduce_scatterv(flat, mine, counts, "sum", postscale=scale, name=name)
        transport.allgatherv(mine, flat, counts, name=name)

    return Way(f"{transport.kind} reduce-scatter + all-gather", transport, run)


def in_order_way(transport: Transport) -> Way:
    """Give each rank a part, let it add up what came in rank order, and gather the parts."""

    def run(flat: torch.Tensor, scale: float, name: str) -> None:
        counts = balanced_sizes(flat.numel(), transport.size)
        count = counts[transport.rank]
        came = torch.empty(count * transport.size, dtype=flat.dtype)
        transport.alltoallv(flat, counts, came, [count] * transport.size, name=name)
        total, *others = (widened(part) for part in came.view(transport.size, count))
        for part in others:
            total = total | part if total.dtype == np.bool_ else total + part
        mine = narrowed(scaled(total, scale), flat.dtype)
        transport.allgatherv(mine, flat, counts, name=name)

    return Way(f"{transport.kind} all-to-all, added in rank order", transport, run)


def mpi_way(world: World) -> Way:
    """MPI_Allreduce of the MPI that started the ranks.

    It compares nothing, and waits for ever for a rank that does not come.
    """
    from mpi4py import MPI

    communicator: Any = world.communicator

    def run(flat: torch.Tensor, scale: float, name: str) -> None:
        total = np.ascontiguousarray(widened(flat))
        op = MPI.LOR if total.dtype == np.bool_ else MPI.SUM
        communicator.Allreduce(MPI.IN_PLACE, total, op=op)
        flat.copy_(narrowed(scaled(total, scale), flat.dtype))

    library = " ".join(MPI.Get_library_version().partition("\n")[0].partition(",")[0].split())
    return Way(f"MPI_Allreduce ({library})", None, run)


def widened(flat: torch.Tensor) -> Values:
    """The elements in a dtype that MPI and numpy can add: float32 for the 16-bit floats."""
    if flat.dtype in (torch.float16, torch.bfloat16):
        return np.asarray(flat.float().numpy())
    return flat.numpy().copy()


def narrowed(values: Values, dtype: torch.dtype) -> torch.Tensor:
    """The elements in their own dtype again."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


def scaled(values: Values, factor: float) -> Values:
    """The elements times a factor."""
    return values if factor == 1.0 else values * values.dtype.type(factor)
