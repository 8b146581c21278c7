"""The same movements of data, in three ways: kadril's primitives, mpi4py with NumPy, and gloo.

The second is how DistDL does it: a tensor is looked at as a NumPy array, its pieces are copied into
NumPy buffers, MPI moves those, and the results are copied into a tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

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
        self.all_sum_reduce = Calling(MpiSum, comm)
        self.halo_exchange = Calling(MpiHalo, comm)


class Gloo:
    """Modules on torch.distributed with gloo."""

    name = "gloo"

    def __init__(self, group: Any) -> None:
        self.all_sum_reduce = Calling(GlooSum, group)
        self.halo_exchange = Calling(GlooHalo, group)


class Calling(torch.nn.Module):
    """A module around an autograd function, as all three have it."""

    def __init__(self, function: type[torch.autograd.Function], group: Any) -> None:
        super().__init__()
        self.function = function
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call it."""
        return self.function.apply(x, self.group)


class MpiSum(torch.autograd.Function):
    """The sum over both ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Any) -> torch.Tensor:
        """Through NumPy arrays."""
        source = x.detach().cpu().numpy()
        result = np.zeros_like(source)
        comm.Iallreduce(source, result).Wait()
        return torch.tensor(result)


class MpiHalo(torch.autograd.Function):
    """The block with a row more on each side; zeros beyond the edge."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Any) -> torch.Tensor:
        """Through NumPy buffers."""
        other = 1 - comm.rank
        y = F.pad(x, (0, 0, 1, 1))
        array = y.detach().cpu().numpy()
        ghost, edge = (-1, -2) if comm.rank == 0 else (0, 1)
        send = np.ascontiguousarray(array[:, :, edge])
        recv = np.empty_like(send)
        requests = [comm.Irecv(recv, other), comm.Isend(send, other)]
        type(requests[0]).Waitall(requests)
        array[:, :, ghost] = recv
        return y


class GlooSum(torch.autograd.Function):
    """The sum over both ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        """In a copy."""
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y


class GlooHalo(torch.autograd.Function):
    """The block with a row more on each side; zeros beyond the edge."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        """By a send and a receive."""
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
