"""Ranks that are about to move many named tensors first make sure that they mean the same ones.

Without this a rank with another model would wait for a name that nobody else ever submits.
"""

from __future__ import annotations

from collections.abc import Sequence

from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.torch.objects import allgather_object
from kadril.transport import agreement

__all__ = ["check_same"]


def check_same(
    operation: str, lines: Sequence[str], process_set: ProcessSet = global_process_set
) -> None:
    """Raise where ranks of a process set do not give the same lines; collective.

    Args:
        operation: who asks; the start of the message.
        lines: what this rank has, one item per line.
        process_set: the ranks that take part.

    Raises:
        MismatchError: on every rank; it names the first line that differs, on both sides.
    """

    def gather(data: bytes, name: str) -> list[bytes]:
        return allgather_object(data, name=name, process_set=process_set)

    peers = agreement.Peers(process_set.ranks or (), gather)
    agreement.check_same(peers, operation, lines)
