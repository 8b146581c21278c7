"""Base of all transports, which move memory between the ranks of one group, in program order.

A transport is blocking and ordered: every rank of the group makes the same calls in the same order.
Asynchrony, names in any order and fusion belong to the engine above it. What every transport holds:

1. Reductions add pairwise by rank (see `native/kernels.h`), in float32 for the 16-bit floats and in
   the element type otherwise. So every rank, every run and every transport gives the same bits.
2. A call that differs between ranks raises `MismatchError` on all of them, and the next call works.
3. No call waits for ever: `PeerLost` for a rank that is gone, `Stalled` for one that is late.

Ranks in arguments (`root`, peers, keys of counts) are ranks within the group.

Each collective is one method here, which looks at its arguments, and one `_run` method of each
transport, which moves what was looked at:

    allreduce(array, ...)  ---- checks.py ---->  _run_allreduce(CheckedReduction)
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from kadril.transport import checks
from kadril.transport.buffer import Array, Buffer, as_buffer
from kadril.transport.operands import (
    OPS,
    CheckedAllToAll,
    CheckedMessage,
    CheckedReduction,
    Message,
    Op,
)
from kadril.transport.shared_memory import SharedMemory

__all__ = ["OPS", "LateListener", "Message", "Op", "Transport"]

# Called with the world ranks that a call waits for, and for how many seconds it has.
LateListener: TypeAlias = Callable[[Sequence[int], float], None]


class Transport(abc.ABC):
    """Moves memory between the ranks of one group.

    The layers above ask what a transport can do, never which one it is.

    Attributes:
        kind: its name, for people: "shm", "c10d", ...
        rank: of this process, within the group.
        size: number of ranks.
        world_ranks: world rank of each rank of the group.
        takes_any_thread: whether any thread may call it, one at a time, or only the one that made
            it.
        overlaps: whether a collective mostly waits for a network, so that it pays to run it in a
            thread of its own beside a computation. On shared memory it is work of the very core
            that computes.
        reaches_devices: whether tensors on a device may be given, if the backend takes them.
        shared_memory: what the ranks share, where they share memory; None elsewhere.
        moves_by_mpi: whether MPI carries its data, as programs written for Horovod ask.
        memory_host: where only ranks of one host share memory, the number of this rank's host:
            `split(memory_host)` gives a transport whose ranks do. None elsewhere.
        on_late: called with the ranks that a call waits for; where None, they are logged.
        hostnames: name of the host of each world rank, for errors; empty where all are on one.
    """

    kind: str
    rank: int
    size: int
    world_ranks: tuple[int, ...]
    takes_any_thread: bool
    overlaps: bool
    reaches_devices: bool
    shared_memory: SharedMemory | None
    moves_by_mpi: bool = False
    memory_host: int | None = None
    on_late: LateListener | None
    hostnames: Sequence[str] = ()

    @property
    def tier_times(self) -> Mapping[str, float]:
        """Seconds that the last call of this rank spent in each tier, by its name.

        Empty where there is one tier.
        """
        return {}

    @property
    def host_memory(self) -> SharedMemory | None:
        """Memory that this rank shares with those of its host, if they share any.

        Collectives on it are quicker. See `shared_memory` for what all ranks of the group share.
        """
        return self.shared_memory

    def _look_for(self, array: Array) -> checks.Look:
        """Return what looks at an array, and at those given together with it."""
        return as_buffer

    def allreduce(
        self,
        array: Array,
        op: Op = "sum",
        *,
        out: Array | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: str = "",
    ) -> None:
        """Reduce over all ranks; every rank gets the result.

            out = postscale * reduce_r(prescale * array_r)

        Works in place where `out` is None. Integers are scaled in float64 and truncated toward
        zero, 16-bit floats in float32.
        """
        source, target, code = checks.check_allreduce(array, op, out, look=self._look_for(array))
        self._run_allreduce(CheckedReduction(source, target, op, code, prescale, postscale, name))

    def allreduce_many(
        self,
        arrays: Sequence[Array],
        op: Op = "sum",
        *,
        outs: Sequence[Array] | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: str = "",
    ) -> None:
        """Reduce several arrays as `allreduce` does each of them, with the same bits.

        Over tiers the next array is under way before the last bytes of the one before have come.
        """
        reductions = []
        for array, out in zip(arrays, arrays if outs is None else outs, strict=True):
            source, target, code = checks.check_allreduce(
                array, op, None if out is array else out, look=self._look_for(array)
            )
            reductions.append(CheckedReduction(source, target, op, code, prescale, postscale, name))
        self._run_allreduce_many(reductions)

    def _run_allreduce_many(self, reductions: Sequence[CheckedReduction]) -> None:
        for reduction in reductions:
            self._run_allreduce(reduction)

    def reduce(
        self,
        array: Array,
        root: int,
        op: Op = "sum",
        *,
        out: Array | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: str = "",
    ) -> None:
        """Reduce over all ranks; the root gets the result, in place where `out` is None.

        On other ranks `array` is unchanged and `out` is not looked at.
        """
        source, target, code, root = checks.check_reduce(
            array, root, op, out, rank=self.rank, size=self.size, look=self._look_for(array)
        )
        reduction = CheckedReduction(source, target, op, code, prescale, postscale, name)
        self._run_reduce(reduction, root)

    def broadcast(self, array: Array, root: int, *, name: str = "") -> None:
        """Copy the root's array into every rank's, in place."""
        memory, root = checks.check_broadcast(
            array, root, size=self.size, look=self._look_for(array)
        )
        self._run_broadcast(memory, root, name)

    def allgatherv(
        self, array: Array, out: Array, counts: Sequence[int], *, name: str = ""
    ) -> None:
        """Concatenate the arrays of all ranks, in rank order, on every rank.

        Rank r gives `counts[r]` elements; `out` has `sum(counts)`. `array` may be its own part of
        `out`.
        """
        source, target, counts = checks.check_allgatherv(
            array, out, counts, rank=self.rank, size=self.size, look=self._look_for(array)
        )
        self._run_allgatherv(source, target, counts, name)

    @abc.abstractmethod
    def allgather_bytes(self, data: bytes, *, name: str = "") -> list[bytes]:
        """Return a few bytes of each rank, as many of all: shapes, flags, digests.

        Raises:
            MismatchError: they gave different numbers of bytes.
        """

    def reduce_scatterv(
        self,
        array: Array,
        out: Array,
        counts: Sequence[int],
        op: Op = "sum",
        *,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: str = "",
    ) -> None:
        """Reduce over all ranks; rank r gets the r-th part.

        `array` has `sum(counts)` elements on every rank, `out` has `counts[rank]`.
        """
        source, target, counts, code = checks.check_reduce_scatterv(
            array, out, counts, op, rank=self.rank, size=self.size, look=self._look_for(array)
        )
        reduction = CheckedReduction(source, target, op, code, prescale, postscale, name)
        self._run_reduce_scatterv(reduction, counts)

    def alltoallv(
        self,
        array: Array,
        send_counts: Sequence[int],
        out: Array,
        recv_counts: Sequence[int],
        *,
        name: str = "",
    ) -> None:
        """Send the r-th part of `array` to rank r; `out` is what came, in rank order."""
        source, target, sends, recvs = checks.check_alltoallv(
            array,
            send_counts,
            out,
            recv_counts,
            rank=self.rank,
            size=self.size,
            look=self._look_for(array),
        )
        self._run_alltoallv(CheckedAllToAll(source, sends, target, recvs, name))

    def exchange(
        self, sends: Sequence[Message], recvs: Sequence[Message], *, name: str = ""
    ) -> None:
        """Send to and receive from any set of neighbours in one call, as a halo needs it.

        Every rank of the group calls it, also one without neighbours. Several messages between the
        same two ranks are matched in the order of the lists. A message to oneself is allowed.
        """
        sent, received = checks.check_exchange(sends, recvs, rank=self.rank, size=self.size)
        self._run_exchange(sent, received, name)

    @abc.abstractmethod
    def barrier(self, *, name: str = "") -> None:
        """Return when every rank has called it."""

    @abc.abstractmethod
    def split(self, color: int | None, *, key: int | None = None) -> Transport | None:
        """Make a transport for each set of ranks that give the same color; collective.

        Ranks are ordered by `key` (this group's rank where None). A color of None takes no part
        and gets None.
        """

    def duplicate(self, *, patience: float, stall_warning: float) -> Transport:
        """Make another transport of the same ranks, which waits otherwise; collective.

        Args:
            patience: see `Config`.
            stall_warning: see `Config`.

        Returns:
            This one itself, where it cannot wait otherwise. The caller closes another one.
        """
        return self

    def open_flat(self) -> Transport | None:
        """Make a transport of the same ranks that does not know of hosts; collective.

        Returns:
            None where this one does not know of them either. The caller closes it.
        """
        return None

    def tune(self, *, again: bool = False) -> list[str]:
        """Measure links, and choose by that which way arrays of each size take; collective.

        Args:
            again: measure even where the same hosts have been measured before.

        Returns:
            What is known now, as lines for people; empty where there is nothing to choose.
        """
        return []

    @abc.abstractmethod
    def revoke(self, reason: str = "") -> None:
        """Give up the group: every rank that waits in it, or calls it later, raises `Revoked`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the group; local, and may be called again.

        A rank that still waits in it raises `PeerLost`.
        """

    # What a transport supplies. Arguments were checked; every rank of the group makes the call.

    @abc.abstractmethod
    def _run_allreduce(self, reduction: CheckedReduction) -> None:
        """Reduce the sources of all ranks into the target of each."""

    @abc.abstractmethod
    def _run_reduce(self, reduction: CheckedReduction, root: int) -> None:
        """Reduce the sources of all ranks into the target of the root."""

    @abc.abstractmethod
    def _run_broadcast(self, memory: Buffer, root: int, name: str) -> None:
        """Copy the root's memory into that of all ranks."""

    @abc.abstractmethod
    def _run_allgatherv(
        self, source: Buffer, target: Buffer, counts: Sequence[int], name: str
    ) -> None:
        """Concatenate the sources of all ranks in the target of each."""

    @abc.abstractmethod
    def _run_reduce_scatterv(self, reduction: CheckedReduction, counts: Sequence[int]) -> None:
        """Reduce the sources of all ranks, part r into the target of rank r."""

    @abc.abstractmethod
    def _run_alltoallv(self, arguments: CheckedAllToAll) -> None:
        """Send part r of the source to rank r."""

    @abc.abstractmethod
    def _run_exchange(
        self, sends: Sequence[CheckedMessage], recvs: Sequence[CheckedMessage], name: str
    ) -> None:
        """Send and receive messages."""
