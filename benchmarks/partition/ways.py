"""The same movements of data, in three ways: kadril's primitives, mpi4py with NumPy, and gloo.

The second is how DistDL does it: see `distdl.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from distdl import DistdlHalo, DistdlSum

import kadril.nn as knn
from kadril.partition import Partition


class Kadril:
    """Modules of `kadril.nn`, and a repartition."""

    name = "kadril"

    def __init__(self, P_rows: Partition, P_batch: Partition) -> None:
        self.all_sum_reduce = knn.AllSumReduce(P_rows, tuple(range(P_rows.dim)))
        self.halo_exchange = knn.HaloExchange(P_rows, [(0, 0), (0, 0), (1, 1), (0, 0)])
        self.to_batch = knn.Repartition(P_rows, P_batch)


class MpiNumpy:
    """Modules on mpi4py and NumPy buffers."""

    name = "mpi4py"

    def __init__(self, comm: Any) -> None:
        self.all_sum_reduce = DistdlSum(comm)
        self.halo_exchange = DistdlHalo(comm, 2, (0, 0, 1, 1))


class Gloo:
    """Modules on torch.distributed with gloo."""

    name = "gloo"

    def __init__(self, group: Any) -> None:
        self.all_sum_reduce = Calling(GlooSum, group)
        self.halo_exchange = Calling(GlooHalo, group)


class Calling(torch.nn.Module):
    """A module around an autograd function."""

    def __init__(self, function: type[torch.autograd.Function], group: Any) -> None:
        super().__init__()
        self.function = function
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call it."""
        return self.function.apply(x, self.group)


class GlooSum(torch.autograd.Function):
    """The sum over both ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        """Add up in a copy."""
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y


class GlooHalo(torch.autograd.Function):
    """The block with a row more on each side; zeros beyond the edge."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        """Exchange by a send and a receive."""
        rank = dist.get_rank(group)
        y = F.pad(x, (0, 0, 1, 1))
        ghost, edge = (-1, -2) if rank == 0 else (0, 1)
        send = y[:, :, edge].contiguous()
        recv = torch.empty_like(send)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, send, 1 - rank, group),
                dist.P2POp(dist.irecv, recv, 1 - rank, group),
            ]
        )
        for work in works:
            work.wait()
        y[:, :, ghost] = recv
        return y
