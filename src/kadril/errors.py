"""Exceptions that kadril raises on purpose.

    KadrilError (RuntimeError)
    |
    |-- MismatchError          ranks called different things; nothing moved, the next call works
    |-- DeadlockError          ranks wait for each other in different groups, for ever
    |-- PeerError              this group of ranks cannot continue
    |   |-- PeerLost           a rank is dead, or has left
    |   |-- Stalled            patience ran out on a rank that lives: late or stopped
    |   `-- Revoked            a rank gave the group up (interrupted, or by `revoke()`)
    |-- TransportError         the engine below (gloo, nccl, MPI) failed and did not say which rank
    |-- RendezvousError        ranks could not find, or did not trust, each other
    |-- StateError             called at the wrong time
    |   |-- NotInitializedError                                            (also a ValueError)
    |   |-- AlreadyInitializedError
    |   |-- ClosedError        used after `shutdown()` or `close()`
    |   `-- ForkedError        used in a child made by fork()
    |-- UnsupportedError       no such operation for this dtype, device or transport
    |   `-- UnsupportedReductionError   no such reduction for this collective
    |                                                (also a NotImplementedError and a ValueError)
    |-- ConfigError            an option has a value that makes no sense     (also a ValueError)
    |-- CheckpointError        what is to be loaded does not fit, or is damaged (also a ValueError)
    |-- CheckError             two ways to compute the same result do not agree
    `-- NoRoomError            not enough memory to share                    (also a MemoryError)

Misuse that one rank can see by itself (a root that does not exist, counts that do not add up) is a
plain `ValueError` or `TypeError`, raised before any byte moves.

Each error carries what a program may act on as fields, and ends its message with what to try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = [
    "AlreadyInitializedError",
    "CheckError",
    "CheckpointError",
    "ClosedError",
    "ConfigError",
    "DeadlockError",
    "ForkedError",
    "KadrilError",
    "MismatchError",
    "NoRoomError",
    "NotInitializedError",
    "PeerError",
    "PeerLost",
    "RendezvousError",
    "Revoked",
    "Stalled",
    "StateError",
    "TransportError",
    "UnsupportedError",
    "UnsupportedReductionError",
]


class KadrilError(RuntimeError):
    """The root of the tree: catch this to catch everything kadril raises on purpose.

    Kadril itself raises only what is below it. A program that raises it, as `HorovodInternalError`,
    makes up a failure that elastic training goes on after.
    """


class MismatchError(KadrilError):
    """Ranks that should make the same call made different ones.

    Raised on every rank of the group, before any data moved; the group stays usable.

    Attributes:
        calls: what each rank called, as text, by rank.
    """

    def __init__(self, message: str, calls: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.calls = dict(calls or {})


class DeadlockError(KadrilError):
    """Ranks wait for each other in calls of different groups, so that none can ever go on.

    Raised on every rank that waits so. It is a mistake of the program, not of a peer: to try again
    does not help. The groups in which they waited cannot be used any more.

    Attributes:
        waits: one line for each wait: who waits for whom, in which call, group and line.
        operation: the collective in which this rank waited.
        elapsed: seconds spent waiting in that call.
    """

    def __init__(
        self,
        message: str,
        waits: Sequence[str] = (),
        *,
        operation: str = "",
        elapsed: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.waits = tuple(waits)
        self.operation = operation
        self.elapsed = elapsed


class PeerError(KadrilError):
    """This group of ranks cannot continue; a new group of the survivors can.

    Attributes:
        rank: world rank of the peer that is the cause; None where the engine below does not tell.
        operation: the collective during which it was noticed.
        name: the name given to that call, or an empty string.
        elapsed: seconds spent waiting in that call.
        event: the part of the message that says what happened, without the call; may be empty.
        host: name of that peer's host; empty where it is not known, or all ranks are on one.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        operation: str = "",
        name: str = "",
        elapsed: float = 0.0,
        event: str = "",
        host: str = "",
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.operation = operation
        self.name = name
        self.elapsed = elapsed
        self.event = event
        self.host = host


class PeerLost(PeerError):  # noqa: N818 - reads as what happened, like KeyboardInterrupt
    """A rank died, or left the group while others still wait for it.

    Attributes:
        is_certain: whether the kernel that ran the rank says so; a broken connection may have
            other causes.
    """

    is_certain = False


class Stalled(PeerError):  # noqa: N818
    """Patience ran out on a rank that is alive.

    Attributes:
        state: "late" for a rank that runs but did not call, "stopped" for one that is held by
            SIGSTOP or a debugger.
        num_common: number of calls of the group before this one, which all ranks have made; None
            where that is not known.
        last_common: the last of these calls; may be empty.
        waits: where that rank waits instead: its calls of other groups, with their lines of code.
            Empty where it waits in none, and where that cannot be seen.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        operation: str = "",
        name: str = "",
        elapsed: float = 0.0,
        event: str = "",
        host: str = "",
        state: str = "late",
        num_common: int | None = None,
        last_common: str = "",
        waits: Sequence[str] = (),
    ) -> None:
        super().__init__(
            message,
            rank=rank,
            operation=operation,
            name=name,
            elapsed=elapsed,
            event=event,
            host=host,
        )
        self.state = state
        self.num_common = num_common
        self.last_common = last_common
        self.waits = tuple(waits)


class Revoked(PeerError):  # noqa: N818
    """A rank gave this group up, so that nobody waits for it in vain."""


class TransportError(KadrilError):
    """The engine below failed; its own words are in the message."""


class RendezvousError(KadrilError):
    """Ranks could not find each other, or one did not prove that it belongs to the job."""


class StateError(KadrilError):
    """A call at the wrong time of kadril's life."""


class NotInitializedError(StateError, ValueError):
    """Used before `kadril.init()`."""


class AlreadyInitializedError(StateError):
    """`kadril.init()` called again with other arguments."""


class ClosedError(StateError):
    """Used after `kadril.shutdown()`, or after `close()` of the group."""


class ForkedError(StateError):
    """Used in a child made by `fork()`, which is not a rank and must not disturb its parent."""


class UnsupportedError(KadrilError):
    """There is no such operation for this dtype, device or transport."""


class UnsupportedReductionError(UnsupportedError, NotImplementedError, ValueError):
    """A collective that reduces does not know this reduction."""


class ConfigError(KadrilError, ValueError):
    """An option, from a variable or an argument, has a value that makes no sense."""


class CheckpointError(KadrilError, ValueError):
    """A checkpoint is of another model, incomplete or damaged; nothing was loaded from it.

    Attributes:
        parameter: name of the first parameter that does not fit, or an empty string.
        path: of the file, or an empty string.
    """

    def __init__(self, message: str, *, parameter: str = "", path: str = "") -> None:
        super().__init__(message)
        self.parameter = parameter
        self.path = path


class CheckError(KadrilError):
    """A checked all-reduce differs from its reference, or has NaN or infinite values.

    Raised on every rank, also where the result is right; the group stays usable.

    Attributes:
        rank: world rank that saw the largest error.
        parameter: its place in the list that was reduced.
        name: of the parameter, or an empty string.
        index: of the worst element in the parameter.
        value: of that element, as it was reduced.
        reference: what it should be.
        error: |value - reference| / max(|reference|, floor); infinite for NaN and infinity.
        limit: the largest error that was allowed.
        path: of the dump file that this rank has written, or an empty string.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int = 0,
        parameter: int = 0,
        name: str = "",
        index: Sequence[int] = (),
        value: complex = 0.0,
        reference: complex = 0.0,
        error: float = 0.0,
        limit: float = 0.0,
        path: str = "",
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.parameter = parameter
        self.name = name
        self.index = tuple(index)
        self.value = value
        self.reference = reference
        self.error = error
        self.limit = limit
        self.path = path


class NoRoomError(KadrilError, MemoryError):
    """There is not enough memory to share.

    Attributes:
        needed: bytes that were asked for.
        available: bytes that could be had, or None where that is not known.
    """

    def __init__(self, message: str, *, needed: int = 0, available: int | None = None) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


def name_ranks(ranks: Sequence[int], most: int = 16) -> str:
    """Return ranks as messages name them: "rank 3", "ranks 1, 2 and 40 more"."""
    shown = ", ".join(str(rank) for rank in ranks[:most]) or "?"
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
