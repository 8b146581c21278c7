"""A call: what one rank asks its group for, and how it is compared with what the others ask for.

Every rank writes its call as text, e.g. `allreduce(float32[2, 3], sum, name='grad')`. Where the
texts differ nothing moves, and every rank raises a `MismatchError` that shows all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from kadril.errors import MismatchError
from kadril.transport.buffer import Buffer
from kadril.transport.operands import CheckedAllToAll, CheckedReduction

__all__ = ["DIGEST_BYTES", "Call", "mismatch"]

DIGEST_BYTES = 16
MAX_SHOWN = 240  # characters of one call in a message


class Call(NamedTuple):
    """One collective, as one rank asks for it.

    Attributes:
        operation: the name of the collective.
        common: arguments that every rank must give alike.
        own: arguments that may differ between ranks; shown, not compared.
        name: the name the caller gave this call.
    """

    operation: str
    common: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    name: str = ""

    @property
    def text(self) -> str:
        """`allreduce(float32[2, 3], sum, name='grad')`, shortened where that is very long."""
        arguments = [*self.common, *self.own]
        if self.name:
            arguments.append(f"name={self.name!r}")
        text = f"{self.operation}({', '.join(arguments)})"
        return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 4]}...)"

    def digest(self) -> bytes:
        """Return bytes that are equal for calls that agree in all that ranks must agree in."""
        compared = "\0".join((self.operation, self.name, *self.common))
        return hashlib.blake2b(compared.encode(), digest_size=DIGEST_BYTES).digest()


def reduction_call(
    operation: str, memory: str, reduction: CheckedReduction, *, root: int | None = None
) -> Call:
    """Return the call of a collective that reduces."""
    common = [memory, reduction.op]
    if root is not None:
        common.append(f"root={root}")
    if reduction.prescale != 1.0:
        common.append(f"prescale={reduction.prescale!r}")
    if reduction.postscale != 1.0:
        common.append(f"postscale={reduction.postscale!r}")
    return Call(operation, tuple(common), name=reduction.name)


def alltoallv_call(memory: str, arguments: CheckedAllToAll) -> Call:
    """Return the call of an all-to-all: ranks need not send as much as they receive."""
    source, send_counts, _, recv_counts, name = arguments
    own = f"send {counted(source, send_counts)}", f"recv {counted(source, recv_counts)}"
    return Call("alltoallv", (memory,), own, name)


def shaped(buffer: Buffer) -> str:
    """`float32[2, 3]`."""
    return f"{buffer.dtype.name}{list(buffer.shape)}"


def counted(buffer: Buffer, counts: Sequence[int]) -> str:
    """`float32[2 + 0 + 3]`: a concatenation of parts."""
    return f"{buffer.dtype.name}[{' + '.join(map(str, counts))}]"


def mismatch(texts: Sequence[str], world_ranks: Sequence[int], detail: str = "") -> MismatchError:
    """The error that every rank of a group raises when their calls differ.

    Args:
        texts: what each rank called, in the order of the group.
        world_ranks: the world rank of each.
        detail: what exactly does not fit, where the texts alone do not show it.
    """
    callers: dict[str, list[int]] = {}
    for text, world_rank in zip(texts, world_ranks, strict=True):
        callers.setdefault(text, []).append(world_rank)
    lines = ["ranks of one group made different calls, so nothing was moved:"]
    for text, ranks in callers.items():
        who = "rank" if len(ranks) == 1 else "ranks"
        lines.append(f"  {who} {', '.join(map(str, ranks))}: {text}")
    if detail:
        lines.append(f"  {detail}")
    lines.append(
        "The group stays usable. Let every rank make the same calls in the same order, with the"
        " same shape, dtype, op, root, scales and name; look for a condition on the rank, or for"
        " data of different length, before this call."
    )
    return MismatchError("\n".join(lines), dict(zip(world_ranks, texts, strict=True)))
