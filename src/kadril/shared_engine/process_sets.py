"""Process sets: subsets of the ranks that communicate among themselves, each at its own pace."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from kadril.engine import Engine
from kadril.engine.engine import GLOBAL_SET
from kadril.partition import Partition
from kadril.shared_engine.context import context
from kadril.world import current

__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "remove_process_set",
]


class ProcessSet:
    """A set of ranks.

    Attributes:
        ranks: world ranks of its members, ascending; None for the set of all before `init()`.
        process_set_id: its number, the same on all ranks; None while it is not registered.
        mpi_comm: the communicator it was made from, or None.

    Args:
        ranks_or_comm: ranks; a communicator of mpi4py; or a partition, or anything else with
            `ranks`, of which it takes those, ascending, and no shape. The way back is
            `partition.create_partition_inclusive(process_set)`.

    Raises:
        ValueError: a rank is not an integer.
    """

    def __init__(self, ranks_or_comm: Any = None) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        self._registry: Registry | None = None
        if ranks_or_comm is None:
            return
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
            return
        ranks = list(getattr(ranks_or_comm, "ranks", ranks_or_comm))
        for rank in ranks:
            if isinstance(rank, bool) or not isinstance(rank, numbers.Integral):
                raise ValueError(  # noqa: TRY004 - what scripts expect
                    f"a process set is made of ranks, which are integers, not {rank!r}"
                )
        self.ranks = sorted(int(rank) for rank in ranks)

    def included(self) -> bool:
        """Whether this process is a member.

        Raises:
            ValueError: the set is not registered.
        """
        self._check_registered("included")
        return self._registry is not None and current().rank in (self.ranks or ())

    def size(self) -> int | None:
        """Number of members; None while the set is not registered."""
        return None if self.process_set_id is None else len(self.ranks or ())

    def rank(self) -> int | None:
        """Rank of this process among the members; None while the set is not registered.

        Raises:
            ValueError: this process is not a member.
        """
        if self.process_set_id is None:
            return None
        rank = current().rank
        if self.ranks is None or rank not in self.ranks:
            raise ValueError(f"rank {rank} is not in process set {self}")
        return self.ranks.index(rank)

    def _check_registered(self, question: str) -> None:
        if self.process_set_id is None:
            raise ValueError(
                f"{question}() of a process set that is not registered; pass it to init() or"
                " add_process_set() first"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return self is other or (
            self.process_set_id is not None and self.process_set_id == other.process_set_id
        )

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks},"
            f" mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__


class Registry:
    """The process sets of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sets: dict[int, ProcessSet] = {}
        self._register(global_process_set, GLOBAL_SET)

    def _register(self, process_set: ProcessSet, set_id: int) -> None:
        process_set.process_set_id = set_id
        process_set.ranks = list(self.engine.members[set_id])
        process_set._registry = self
        self.sets[set_id] = process_set

    def add(self, process_set: ProcessSet | Partition | Sequence[int]) -> ProcessSet:
        """Register a set; all ranks do it alike."""
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        if process_set.process_set_id is not None:
            raise ValueError(f"{process_set} is registered already")
        ranks = process_set.ranks
        if process_set.mpi_comm is not None:
            ranks = ranks_of(process_set.mpi_comm)
        set_id = self.engine.add_set(ranks or ())
        self._register(process_set, set_id)
        return process_set

    def remove(self, process_set: ProcessSet) -> bool:
        """Take a set out; all ranks do it alike."""
        set_id = process_set.process_set_id
        if set_id is None or set_id == GLOBAL_SET or set_id not in self.sets:
            return False
        self.engine.remove_set(set_id)
        self._forget(self.sets.pop(set_id))
        process_set.process_set_id = None
        return True

    def forget_all(self) -> None:
        """Unregister all process sets, at the end of the engine."""
        for process_set in self.sets.values():
            self._forget(process_set)
        self.sets.clear()

    def _forget(self, process_set: ProcessSet) -> None:
        process_set.process_set_id = GLOBAL_SET if process_set is global_process_set else None
        process_set._registry = None
        if process_set is global_process_set:
            process_set.ranks = None


def ranks_of(communicator: Any) -> list[int]:
    """World ranks of the members of a communicator of mpi4py; collective over it."""
    return sorted(communicator.allgather(current().rank))


# Its number is known before there is an engine: it is the default of every operation.
global_process_set = ProcessSet()
global_process_set.process_set_id = GLOBAL_SET


def registry() -> Registry:
    """The sets of the engine that is running."""
    return context().registry


def add_process_set(process_set: ProcessSet | Partition | Sequence[int]) -> ProcessSet:
    """Register a process set; all ranks of the world call it alike, also those not in it.

    Raises:
        ValueError: a set of the same ranks exists, or a rank does not.
        MismatchError: ranks asked for different sets.
    """
    return registry().add(process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; all ranks of the world call it alike.

    Returns:
        False for the set of all ranks and for one that is not registered.
    """
    return registry().remove(process_set)


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """World ranks of every registered set, by its number."""
    return {set_id: list(ranks) for set_id, ranks in registry().engine.members.items()}
