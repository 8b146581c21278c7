"""Errors of kadril as TensorFlow tells of them, and back again.

TensorFlow keeps of an error of an op no more than a code and a text. So the text ends with the kind
of the error, which is how elastic training knows what to do; `kernels/kernels.cc` writes the same:

    HorovodAllreduce: allreduce(...): a rank is too late (rank 1) [kadril.Stalled]
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from kadril import errors
from kadril.errors import KadrilError, PeerError, Revoked
from kadril.shared_engine.context import context
from kadril.tensorflow.framework import tf

__all__ = ["as_kadril_errors", "kadril_error_of", "marked"]

MARK = re.compile(r"(?:\(rank (\d+)\) )?\[kadril\.(\w+)\]")

# Of a step that has failed on another rank alone, in the words of `native/engine/conductor.cc`.
WITHDRAWN = re.compile(r"rank (\d+) has withdrawn what this rank waits for")


def marked(error: KadrilError) -> str:
    """Return the text by which TensorFlow tells of an error."""
    rank = getattr(error, "rank", None)
    return f"{error}{'' if rank is None else f' (rank {rank})'} [kadril.{type(error).__name__}]"


@contextlib.contextmanager
def as_kadril_errors() -> Iterator[None]:
    """Raise errors of kadril as themselves where TensorFlow tells of them."""
    try:
        yield
    except tf.errors.OpError as error:
        own = kadril_error_of(error)
        if own is None:
            raise
        raise own from error


def kadril_error_of(error: BaseException) -> KadrilError | None:
    """Return the error of kadril that TensorFlow tells of, or None where it is another one."""
    if isinstance(error.__cause__, KadrilError):
        return error.__cause__
    text = str(error)
    found = MARK.search(text)
    if found is None:
        return None
    withdrawn = WITHDRAWN.search(text)
    if withdrawn:
        return Revoked(text, rank=int(withdrawn[1]))
    kind = getattr(errors, found[2], None)
    if kind is None or kind is KadrilError:
        # Not the root itself: it stands for a failure that the program has made up.
        return error_of_transport() or errors.StateError(text)
    own: KadrilError = kind(text)
    if isinstance(own, PeerError) and found[1] is not None:
        own.rank = int(found[1])
    return own


def error_of_transport() -> KadrilError | None:
    """Return the error by which a transport that is written in Python has ended a process set."""
    try:
        conductors = list(context().engine.conductors.values())
    except errors.StateError:
        return None
    ended = (conductor.error for conductor in conductors)
    return next((error for error in ended if isinstance(error, KadrilError)), None)
