"""The transport protocol: moves memory between the ranks of one group, in program order.

A transport is blocking and ordered: every rank of the group makes the same calls in the same order.
Asynchrony, names in any order and fusion belong to the engine above it. What every transport holds:

1. Reductions add pairwise by rank (see `native/kernels.h`), in float32 for the 16-bit floats and in
   the element type otherwise. So every rank, every run and every transport gives the same bits.
2. A call that differs between ranks raises `MismatchError` on all of them, and the next call works.
3. No call waits for ever: `PeerLost` for a rank that is gone, `Stalled` for one that is late.

Ranks in arguments (`root`, peers, keys of counts) are ranks within the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias, get_args, runtime_checkable

from kadril.transport.buffer import Array
from kadril.transport.shared_memory import SharedMemory

__all__ = ["OPS", "LateListener", "Message", "Op", "Transport"]

Op: TypeAlias = Literal["sum", "product", "min", "max", "band", "bor"]

# A position in this tuple is the code of the op in the native core.
OPS: tuple[str, ...] = get_args(Op)

# (peer, memory): what goes to, or comes from, one neighbour.
Message: TypeAlias = tuple[int, Array]

# Called with the world ranks that a call waits for, and for how many seconds it has.
LateListener: TypeAlias = Callable[[Sequence[int], float], None]


@runtime_checkable
class Transport(Protocol):
    """Moves memory between the ranks of one group.

    The layers above ask what a transport can, never which one it is.

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
        on_late: told of the ranks that a call waits for; where None, they are logged.
    """

    kind: str
    rank: int
    size: int
    world_ranks: tuple[int, ...]
    takes_any_thread: bool
    overlaps: bool
    reaches_devices: bool
    on_late: LateListener | None

    @property
    def shared_memory(self) -> SharedMemory | None:
        """What the ranks share, where they share memory; None elsewhere."""
        ...

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
        ...

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
        ...

    def broadcast(self, array: Array, root: int, *, name: str = "") -> None:
        """Copy the root's array into every rank's, in place."""
        ...

    def allgatherv(
        self, array: Array, out: Array, counts: Sequence[int], *, name: str = ""
    ) -> None:
        """Concatenate the arrays of all ranks, in rank order, on every rank.

        Rank r gives `counts[r]` elements; `out` has `sum(counts)`. `array` may be its own part of
        `out`.
        """
        ...

    def allgather_bytes(self, data: bytes, *, name: str = "") -> list[bytes]:
        """Return a few bytes of each rank, as many of all: shapes, flags, digests.

        Raises:
            MismatchError: they gave different numbers of bytes.
        """
        ...

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
        ...

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
        ...

    def exchange(
        self, sends: Sequence[Message], recvs: Sequence[Message], *, name: str = ""
    ) -> None:
        """Send to and receive from any set of neighbours in one call, as a halo needs it.

        Every rank of the group calls it, also one without neighbours. Several messages between the
        same two ranks are matched in the order of the lists. A message to oneself is allowed.
        """
        ...

    def barrier(self, *, name: str = "") -> None:
        """Return when every rank has called it."""
        ...

    def split(self, color: int | None, *, key: int | None = None) -> Transport | None:
        """Make a transport for each set of ranks that give the same color; collective.

        Ranks are ordered by `key` (this group's rank where None). A color of None takes no part
        and gets None.
        """
        ...

    def revoke(self, reason: str = "") -> None:
        """Give the group up: every rank that waits in it, or calls it later, raises `Revoked`."""
        ...

    def close(self) -> None:
        """Leave the group; local, and may be called again. Who still waits raises `PeerLost`."""
        ...
