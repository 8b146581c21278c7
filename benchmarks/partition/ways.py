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

from kadril import ops
from kadril.partition import Partition


class Kadril:
    """Primitives of `kadril.ops`."""

    name = "kadril"

    def __init__(self, P_rows: Partition, P_batch: Partition) -> None:
        self.P_rows = P_rows
        self.sum_axes = tuple(range(P_rows.dim))
        widen = ops.HaloExchanger(
            P_rows,
            [
                None,
                None,
                lambda blocks: [b._replace(start=b.start - 1, stop=b.stop + 1) for b in blocks],
                None,
            ],
        )
        self.halo = widen
        self.to_batch = ops.Repartitioner(P_rows, P_batch)

    def all_sum_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over both ranks."""
        return ops.all_sum_reduce(x, self.P_rows, self.sum_axes)

    def halo_exchange(self, x: torch.Tensor) -> torch.Tensor:
        """The block with a row more on each side."""
        return self.halo(x)


class MpiNumpy:
    """mpi4py and NumPy buffers."""

    name = "mpi4py"

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.other = 1 - comm.rank

    def all_sum_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over both ranks."""
        source = x.detach().cpu().numpy()
        result = np.zeros_like(source)
        self.comm.Iallreduce(source, result).Wait()
        return torch.tensor(result)

    def halo_exchange(self, x: torch.Tensor) -> torch.Tensor:
        """The block with a row more on each side; zeros beyond the edge."""
        y = F.pad(x, (0, 0, 1, 1))
        array = y.detach().cpu().numpy()
        ghost, edge = (-1, -2) if self.comm.rank == 0 else (0, 1)
        send = np.ascontiguousarray(array[:, :, edge])
        recv = np.empty_like(send)
        requests = [self.comm.Irecv(recv, self.other), self.comm.Isend(send, self.other)]
        type(requests[0]).Waitall(requests)
        array[:, :, ghost] = recv
        return y


class Gloo:
    """torch.distributed on gloo."""

    name = "gloo"

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.other = 1 - self.rank

    def all_sum_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over both ranks."""
        y = x.clone()
        dist.all_reduce(y, group=self.group)
        return y

    def halo_exchange(self, x: torch.Tensor) -> torch.Tensor:
        """The block with a row more on each side; zeros beyond the edge."""
        y = F.pad(x, (0, 0, 1, 1))
        ghost, edge = (-1, -2) if self.rank == 0 else (0, 1)
        send = y[:, :, edge].contiguous()
        recv = torch.empty_like(send)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, send, self.other, self.group),
                dist.P2POp(dist.irecv, recv, self.other, self.group),
            ]
        )
        for work in works:
            work.wait()
        y[:, :, ghost] = recv
        return y
