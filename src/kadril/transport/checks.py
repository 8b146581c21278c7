"""Checks of a call by one rank alone, before any byte moves.

One function per collective. Each looks at the arguments once and returns the buffers and codes that
the transport continues with. They raise

    TypeError         an argument of the wrong type, or two dtypes where there must be one
    ValueError        a root, peer or count that does not fit the group; memory that overlaps
    UnsupportedError  an op that makes no sense for the dtype, a dtype that transports do not move

so the caller has learnt of its mistake while the other ranks still wait, and can try again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

from kadril import _native
from kadril.errors import UnsupportedError
from kadril.transport.buffer import DTYPES, Array, Buffer, as_buffer
from kadril.transport.operands import OPS, CheckedMessage, Message

__all__ = [
    "check_allgatherv",
    "check_allreduce",
    "check_alltoallv",
    "check_broadcast",
    "check_counts",
    "check_exchange",
    "check_op",
    "check_rank",
    "check_reduce",
    "check_reduce_scatterv",
    "check_split",
]

# How a tensor is looked at: `as_buffer`, unless a transport moves other memory than the CPU's.
Look: TypeAlias = Callable[[Array], Buffer]

# The code of an op, for each dtype code for which it makes sense.
OP_CODES = {
    (op, dtype.code): code
    for code, op in enumerate(OPS)
    for dtype in DTYPES.values()
    if _native.supports(dtype.code, code)
}


def check_allreduce(
    array: Array, op: str, out: Array | None, *, look: Look = as_buffer
) -> tuple[Buffer, Buffer, int]:
    """Return the source, the target and the code of the op."""
    source = look(array)
    code = check_op(op, source)
    if out is None or out is array:
        return source, source, code
    target = look(out)
    check_same_dtype(source, target)
    if source.count != target.count:
        raise ValueError(
            f"array has {source.count} elements, out has {target.count}; they must be as many"
        )
    check_overlap(target, source, source.address)
    return source, target, code


def check_reduce(
    array: Array,
    root: int,
    op: str,
    out: Array | None,
    *,
    rank: int,
    size: int,
    look: Look = as_buffer,
) -> tuple[Buffer, Buffer, int, int]:
    """Return source, target, the op's code and the root; elsewhere `out` is not looked at."""
    root = check_rank(root, size, "root")
    source, target, code = check_allreduce(array, op, out if rank == root else None, look=look)
    return source, target, code, root


def check_broadcast(
    array: Array, root: int, *, size: int, look: Look = as_buffer
) -> tuple[Buffer, int]:
    """Return the memory and the root."""
    return look(array), check_rank(root, size, "root")


def check_allgatherv(
    array: Array,
    out: Array,
    counts: Sequence[int],
    *,
    rank: int,
    size: int,
    look: Look = as_buffer,
) -> tuple[Buffer, Buffer, tuple[int, ...]]:
    """Return source, target and counts; the source may be its own part of the target."""
    source, target = look(array), look(out)
    counts = check_counts(counts, size, "counts")
    check_same_dtype(source, target)
    if source.count != counts[rank]:
        raise ValueError(f"array has {source.count} elements, but counts[{rank}] is {counts[rank]}")
    check_total(target, counts, "out", "counts")
    check_overlap(source, target, target.address + sum(counts[:rank]) * source.dtype.itemsize)
    return source, target, counts


def check_reduce_scatterv(
    array: Array,
    out: Array,
    counts: Sequence[int],
    op: str,
    *,
    rank: int,
    size: int,
    look: Look = as_buffer,
) -> tuple[Buffer, Buffer, tuple[int, ...], int]:
    """Return source, target, counts and the op's code; the target may be its own part."""
    source, target = look(array), look(out)
    counts = check_counts(counts, size, "counts")
    code = check_op(op, source)
    check_same_dtype(source, target)
    check_total(source, counts, "array", "counts")
    if target.count != counts[rank]:
        raise ValueError(f"out has {target.count} elements, but counts[{rank}] is {counts[rank]}")
    check_overlap(target, source, source.address + sum(counts[:rank]) * source.dtype.itemsize)
    return source, target, counts, code


def check_alltoallv(
    array: Array,
    send_counts: Sequence[int],
    out: Array,
    recv_counts: Sequence[int],
    *,
    rank: int,
    size: int,
    look: Look = as_buffer,
) -> tuple[Buffer, Buffer, tuple[int, ...], tuple[int, ...]]:
    """Return the source, the target and both counts; no memory may be shared."""
    source, target = look(array), look(out)
    send_counts = check_counts(send_counts, size, "send_counts")
    recv_counts = check_counts(recv_counts, size, "recv_counts")
    check_same_dtype(source, target)
    check_total(source, send_counts, "array", "send_counts")
    check_total(target, recv_counts, "out", "recv_counts")
    if send_counts[rank] != recv_counts[rank]:
        raise ValueError(
            f"send_counts[{rank}] is {send_counts[rank]} and recv_counts[{rank}] is"
            f" {recv_counts[rank]}: what this rank sends to itself is what it receives from itself"
        )
    check_overlap(source, target, None)
    return source, target, send_counts, recv_counts


def check_exchange(
    sends: Sequence[Message],
    recvs: Sequence[Message],
    *,
    rank: int,
    size: int,
    look: Look = as_buffer,
) -> tuple[list[CheckedMessage], list[CheckedMessage]]:
    """Return both lists, looked at; received memory may overlap no other memory of the call."""
    sent = [addressed(message, size, "sends", look) for message in sends]
    received = [addressed(message, size, "recvs", look) for message in recvs]
    to_itself = [describe(message.buffer) for message in sent if message.peer == rank]
    from_itself = [describe(message.buffer) for message in received if message.peer == rank]
    if to_itself != from_itself:
        raise ValueError(
            f"rank {rank} sends [{', '.join(to_itself)}] to itself but receives"
            f" [{', '.join(from_itself)}] from itself"
        )
    check_apart(sent, received)
    return sent, received


def check_split(color: int | None, key: int | None, rank: int) -> tuple[int | None, int]:
    """Return the color and the key, this group's rank where that is None."""
    if color is not None:
        color = as_int64(color, "color")
    return color, rank if key is None else as_int64(key, "key")


def check_op(op: str, source: Buffer) -> int:
    """Return the code of the op."""
    code = OP_CODES.get((op, source.dtype.code))
    if code is not None:
        return code
    if op not in OPS:
        raise ValueError(f"there is no op {op!r}; use one of {', '.join(OPS)}")
    possible = [name for name in OPS if (name, source.dtype.code) in OP_CODES]
    raise UnsupportedError(
        f"op {op!r} makes no sense for {source.dtype.name}; use one of {', '.join(possible)}"
    )


def check_rank(rank: int, size: int, what: str) -> int:
    """Return a rank of the group as a plain integer."""
    rank = as_index(rank, what)
    if not 0 <= rank < size:
        raise ValueError(f"{what} is {rank}; this group has ranks 0 to {size - 1}")
    return rank


def check_counts(counts: Sequence[int], size: int, what: str) -> tuple[int, ...]:
    """Return the counts, one for each rank of the group, as plain integers."""
    plain = tuple(as_index(count, f"{what}[{i}]") for i, count in enumerate(counts))
    if len(plain) != size:
        raise ValueError(f"{what} has {len(plain)} entries; this group has {size} ranks")
    if min(plain) < 0:
        raise ValueError(f"{what} is {list(plain)}; a count cannot be less than 0")
    return plain


def check_total(buffer: Buffer, counts: Sequence[int], memory: str, what: str) -> None:
    """Require that a concatenation is as long as its parts."""
    if buffer.count != sum(counts):
        raise ValueError(
            f"{memory} has {buffer.count} elements, but {what} add up to {sum(counts)}"
        )


def check_same_dtype(source: Buffer, target: Buffer) -> None:
    """Require one element type for what goes in and what comes out."""
    if source.dtype != target.dtype:
        raise TypeError(
            f"array is {source.dtype.name} and out is {target.dtype.name}; they must be the same"
        )


def check_overlap(inner: Buffer, outer: Buffer, allowed: int | None) -> None:
    """Require that two pieces of memory are apart, or `inner` begins at the allowed address."""
    if inner.address != allowed and overlaps(inner, outer):
        raise ValueError(
            "the memory of array and out overlaps in part; use memory that is apart"
            + ("" if allowed is None else ", or the very same")
        )


def check_apart(sent: Sequence[CheckedMessage], received: Sequence[CheckedMessage]) -> None:
    """Require that nothing is received into memory that is sent from, or received into twice."""
    spans = sorted(
        (message.buffer.address, message.buffer.address + message.buffer.nbytes, is_received)
        for is_received, messages in ((False, sent), (True, received))
        for message in messages
        if message.buffer.count
    )
    sent_end = received_end = 0
    for begin, end, is_received in spans:
        if begin < received_end or (is_received and begin < sent_end):
            raise ValueError(
                "memory to receive into overlaps other memory of this exchange; use separate memory"
            )
        if is_received:
            received_end = max(received_end, end)
        else:
            sent_end = max(sent_end, end)


def overlaps(one: Buffer, other: Buffer) -> bool:
    """Whether two pieces of memory share a byte."""
    return (
        one.address < other.address + other.nbytes
        and other.address < one.address + one.nbytes
        and one.count > 0
        and other.count > 0
    )


def addressed(message: Message, size: int, what: str, look: Look) -> CheckedMessage:
    """Look at one message of an exchange."""
    try:
        peer, array = message
    except (TypeError, ValueError):
        raise TypeError(
            f"{what} must be a list of pairs (peer, memory), got {type(message).__name__}"
        ) from None
    return CheckedMessage(check_rank(peer, size, f"a peer in {what}"), look(array))


def describe(buffer: Buffer) -> str:
    """`float32[12]`: what both ends of a message must agree in."""
    return f"{buffer.dtype.name}[{buffer.count}]"


def as_index(value: int, what: str) -> int:
    """An integer of any integer type as a plain one."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, got {type(value).__name__}") from None


def as_int64(value: int, what: str) -> int:
    """An integer that fits 64 bits as a plain one."""
    value = as_index(value, what)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{what} is {value}, which does not fit 64 bits")
    return value
