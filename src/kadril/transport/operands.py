"""Operands of collectives: ops, messages, and both after they were checked."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

from kadril.transport.buffer import Array, Buffer

__all__ = ["OPS", "CheckedAllToAll", "CheckedMessage", "CheckedReduction", "Message", "Op"]

Op: TypeAlias = Literal["sum", "product", "min", "max", "band", "bor"]

# A position in this tuple is the code of the op in the native core.
OPS: tuple[str, ...] = get_args(Op)

# (peer, memory): what goes to, or comes from, one neighbour.
Message: TypeAlias = tuple[int, Array]


class CheckedReduction(NamedTuple):
    """The arguments of a collective that reduces, after they were checked.

    Attributes:
        source: what this rank gives.
        target: where the result goes; the source itself in place.
        op: the reduction.
        op_code: its code in the native core.
        prescale: factor for what each rank gives.
        postscale: factor for the result.
        name: of the call.
    """

    source: Buffer
    target: Buffer
    op: Op
    op_code: int
    prescale: float
    postscale: float
    name: str


class CheckedAllToAll(NamedTuple):
    """The arguments of an all-to-all, after they were checked.

    Attributes:
        source: what this rank sends, in the order of ranks.
        send_counts: elements for each rank.
        target: where what comes goes.
        recv_counts: elements from each rank.
        name: of the call.
    """

    source: Buffer
    send_counts: tuple[int, ...]
    target: Buffer
    recv_counts: tuple[int, ...]
    name: str


class CheckedMessage(NamedTuple):
    """A message of an exchange after it was checked: its peer, its memory."""

    peer: int
    buffer: Buffer
