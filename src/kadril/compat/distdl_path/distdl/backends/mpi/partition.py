"""Partitions as DistDL has them, over `kadril.partition`.

A worker that is not in a partition holds an inactive one: `active` is False, `rank` is
MPI.PROC_NULL, `size` is -1 and `index` is None; a Cartesian partition keeps its `shape`.

Making a partition is collective over the workers of the one it is made from; making one from two is
collective over their common group (`common_group.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kadril.compat.communicator import Communicator
from kadril.compat.reduction_op import op_name
from kadril.partition import Partition

from .common_group import in_common_group
from .communicator_group import group_of, is_null, null_communicator, null_rank

__all__ = ["MPICartesianPartition", "MPIPartition"]

OPS = {"sum": "sum", "product": "prod", "min": "min", "max": "max"}


class MPIPartition:
    """An ordered set of workers.

    Args:
        comm: a communicator, of mpi4py or of its stand-in; an inactive partition where None or
            null. Collective over it.
        group: ignored.
        root: the communicator that is shown as `_root`; `comm` where None.

    Attributes:
        active: whether this worker is in it.
        rank: of this worker.
        size: number of workers.
        shape: workers along each axis; one axis where there is no topology.
        dim: number of axes.
        index: of this worker along each axis; its rank where there is no topology.
    """

    def __init__(self, comm: Any = None, group: Any = None, root: Any = None) -> None:
        del group
        core = None
        if not is_null(comm):
            ranks = group_of(comm)
            core = Partition(ranks, ranks, ranks.ranks)
        self._comm: Any = None
        self._root = comm if root is None else root
        self._adopt(core, () if core is None else (core,))
        if self.active:
            self._comm = comm
            self._identity: object = (id(self._lineage[0].root), "root")

    @classmethod
    def _made(
        cls, core: Partition | None, parent: MPIPartition, shape: Sequence[int] | None = None
    ) -> Any:
        """Return a partition that was made from another one."""
        made = cls.__new__(cls)
        made._root = parent._root
        made._adopt(core, parent._lineage if core is None else (*parent._lineage, core), shape)
        return made

    def _adopt(
        self,
        core: Partition | None,
        lineage: tuple[Partition, ...],
        shape: Sequence[int] | None = None,
    ) -> None:
        self._core = core
        self._lineage = lineage
        self._identity = object()
        self.active = core is not None and core.active
        if core is None or not core.active:
            self._become_inactive(shape)
            return
        group = core.group
        self._comm = Communicator(lambda: group)
        self.rank = core.rank
        self.size = core.size
        self.shape = np.array(core.shape, dtype=np.int64)
        self.dim = core.dim
        self.index: Any = core.rank

    def _become_inactive(self, shape: Sequence[int] | None) -> None:
        self.active = False
        self._comm = null_communicator()
        self.rank = null_rank()
        self.size = -1
        self.index = None
        self.shape = np.array([-1] if shape is None else shape, dtype=np.int64)
        self.dim = len(self.shape)

    def deactivate(self) -> None:
        """Leave the partition; what was made from it keeps working."""
        self._core, self._identity = None, object()
        self._become_inactive(None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MPIPartition):
            return NotImplemented
        return self.active and other.active and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core!r})"

    def print_sequential(self, val: object) -> None:
        """Print a value of each worker in the order of ranks; rank 0 prints."""
        if self.active:
            lines = self._communicator.gather(f"{val}")
            if lines is not None:
                sys.stdout.write("".join(f"{line}\n" for line in lines))
                sys.stdout.flush()

    @property
    def _communicator(self) -> Communicator:
        """A communicator of the workers, for one of them."""
        core = self._core
        if core is None:
            raise ValueError("this worker is not in the partition")
        return Communicator(lambda: core.group)

    # ---- other partitions -----------------------------------------------------------------------

    def create_partition_inclusive(self, ranks: Iterable[int]) -> MPIPartition:
        """Return a partition of some workers of this one, in the order given."""
        core = self._core
        if core is not None:
            core = core.create_partition_inclusive([int(rank) for rank in ranks])
        made: MPIPartition = MPIPartition._made(core, self)
        return made

    def create_partition_union(self, other: MPIPartition) -> MPIPartition:
        """Return the workers of this one, followed by those of another that are not in it.

        Raises:
            ValueError: they come from different communicators.
        """
        pair = in_common_group(self, other)
        core = None if pair is None else pair[0].create_partition_union(pair[1])
        if core is None and self._core is not None and other._core is not None:
            # Who is in it is known on all ranks, also where nothing was made.
            ranks = dict.fromkeys((*self._core.ranks, *other._core.ranks))
            core = Partition(self._core.root, None, tuple(ranks))
        made: MPIPartition = MPIPartition._made(core, self if self._lineage else other)
        return made

    def create_cartesian_topology_partition(
        self, shape: Sequence[int], **options: Any
    ) -> MPICartesianPartition:
        """Return the same workers with a shape.

        Args:
            shape: workers along each axis.
            options: `periods`: for each axis, whether the last worker has the first as neighbour;
                `reorder` has no effect.

        Raises:
            ValueError: there are not as many workers.
        """
        lengths = [int(length) for length in np.atleast_1d(np.asarray(shape, dtype=np.int64))]
        core = self._core
        if core is not None:
            core = core.create_cartesian_topology_partition(lengths)
        made: MPICartesianPartition = MPICartesianPartition._made(core, self, lengths)
        periods = options.get("periods") or [False] * len(lengths)
        made._periods = [bool(wraps) for wraps in np.broadcast_to(periods, len(lengths))]
        return made

    def create_broadcast_partition_to(
        self, P_dest: MPIPartition, transpose_src: bool = False, transpose_dest: bool = False
    ) -> tuple[MPIPartition, MPIPartition]:
        """Return the group this worker sends to, and the one it receives in; rank 0 sends."""
        make = Partition.create_broadcast_partition_to
        return self._pair_with(P_dest, make, transpose_src, transpose_dest)

    def create_reduction_partition_to(
        self, P_dest: MPIPartition, transpose_src: bool = False, transpose_dest: bool = False
    ) -> tuple[MPIPartition, MPIPartition]:
        """Return the group this worker adds to, and the one whose sum it gets as rank 0."""
        make = Partition.create_reduction_partition_to
        return self._pair_with(P_dest, make, transpose_src, transpose_dest)

    def _pair_with(
        self, P_dest: MPIPartition, make: Callable[..., tuple[Partition, Partition]], *order: bool
    ) -> tuple[MPIPartition, MPIPartition]:
        pair = in_common_group(self, P_dest)
        if pair is None:
            return MPIPartition(), MPIPartition()
        send, receive = (MPIPartition._made(core, self) for core in make(*pair, *order))
        return send, receive

    def create_allreduction_partition(self, axes_reduce: Sequence[int]) -> MPIPartition:
        """Return the workers that share this one's position along all other axes."""
        core = self._core
        if core is not None:
            core = core.create_allreduction_partition([int(axis) for axis in axes_reduce])
        made: MPIPartition = MPIPartition._made(core, self)
        return made

    # ---- small data -----------------------------------------------------------------------------

    def broadcast_data(
        self, data: npt.ArrayLike | None, root: int = 0, P_data: MPIPartition | None = None
    ) -> Any:
        """Broadcast an array, whose shape only the root needs to know, to all workers.

        Args:
            data: the array, on the root.
            root: the worker that has it, in `P_data`.
            P_data: a part of this partition; itself where None.
        """
        if self._core is None or not self.active:
            return data
        owners = None if P_data is None else P_data._core
        array = None if data is None else np.asarray(data)
        return self._core.broadcast_data(array, root, owners)

    def allgather_data(self, data: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the arrays of all workers, one row for each."""
        array = np.atleast_1d(data)
        if self._core is None or not self.active:
            return array
        return self._core.allgather_data(array).reshape(self.size, -1)

    def allreduce_data(self, data: npt.ArrayLike, op: Any = "sum") -> npt.NDArray[Any]:
        """Reduce an array over all workers.

        Args:
            data: of the same shape on all.
            op: "sum", "prod", "min" or "max", or an operation of MPI.
        """
        name = op if op in ("sum", "prod", "min", "max") else OPS.get(op_name(op), op)
        if self._core is None or not self.active:
            return np.asarray(data)
        return self._core.allreduce_data(data, name)


class MPICartesianPartition(MPIPartition):
    """An ordered set of workers that are arranged along axes.

    Made by `MPIPartition.create_cartesian_topology_partition`.
    """

    _periods: Sequence[bool] = ()

    def _adopt(
        self,
        core: Partition | None,
        lineage: tuple[Partition, ...],
        shape: Sequence[int] | None = None,
    ) -> None:
        super()._adopt(core, lineage, shape)
        if core is not None and core.index is not None:
            self.index = np.array(core.index, dtype=np.int64)

    def create_cartesian_subtopology_partition(
        self, remain_shape: Sequence[bool]
    ) -> MPICartesianPartition:
        """Return the line, plane, ... of workers through this one along the axes that remain."""
        remain = [bool(stays) for stays in remain_shape]
        core = self._core
        shape = [int(each) for each, stays in zip(self.shape, remain, strict=True) if stays] or [1]
        if core is not None:
            core = core.create_cartesian_subtopology_partition(remain)
        made: MPICartesianPartition = MPICartesianPartition._made(core, self, shape)
        return made

    def cartesian_index(self, rank: int) -> npt.NDArray[np.int64]:
        """Return the position of a worker along each axis."""
        return np.array(np.unravel_index(rank, tuple(self.shape)), dtype=np.int64)

    def neighbor_ranks(self, rank: int) -> list[tuple[int, int]]:
        """Return the workers before and after one along each axis; MPI.PROC_NULL for none."""
        index = self.cartesian_index(rank)
        pairs = []
        for axis, length in enumerate(self.shape):
            found = []
            for step in (-1, 1):
                place = index.copy()
                place[axis] += step
                if axis < len(self._periods) and self._periods[axis]:
                    place[axis] %= length
                inside = 0 <= place[axis] < length
                flat = np.ravel_multi_index(tuple(place), tuple(self.shape)) if inside else None
                found.append(null_rank() if flat is None else int(flat))
            pairs.append((found[0], found[1]))
        return pairs
