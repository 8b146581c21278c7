"""Objects, from one rank to all or from all to all.

    root    bytes ---> length (int64) ---> bytes, in parts ---> (keeps its own object)
    others             length         ---> bytes, in parts ---> object

Plain data travels by default; `allow_pickle=True` takes any object, and trusts the other ranks as
much as the program that all of them run (`shared_engine/object_codec.py`). A negative length says
that an object could not be sent, so that no rank waits for its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from kadril.shared_engine.basics import rank
from kadril.shared_engine.object_codec import (
    PickleRefusedError,
    check_plain,
    decode,
    encode,
    is_pickle_allowed,
)
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.torch.ops import allgather, broadcast_

__all__ = ["allgather_object", "broadcast_object"]

T = TypeVar("T")

# Bytes moved by one request. Larger objects take several: some engines below count in 32 bits.
PART = 1 << 30

# Lengths that say why there are no bytes.
FAILED, REFUSED = -1, -2


def broadcast_object(
    obj: T,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool | None = None,
) -> T:
    """The root's object, on every rank; collective.

    Args:
        obj: plain data, or any picklable object where that is allowed; looked at on the root only.
        root_rank: global rank that gives it, also within a process set.
        name: of the call; needed only where several threads broadcast at the same time.
        process_set: the ranks that take part.
        allow_pickle: whether any object is taken, by code that the root chooses; where None, the
            option of the world (KADRIL_ALLOW_PICKLE, off by default).

    Returns:
        The object itself on the root, a copy elsewhere.

    Raises:
        ValueError: on every rank, where the root could not pickle the object, or where it is not
            plain data and pickle is not allowed; on the root the error of pickle is its cause.
    """
    name = "broadcast_object" if name is None else name
    is_root = rank() == root_rank
    is_allowed = is_pickle_allowed(allow_pickle)
    payload, error = pack(obj, is_allowed) if is_root else (None, None)
    length = torch.tensor([length_of(payload, error)])
    broadcast_(length, root_rank, name=f"{name}.length", process_set=process_set)
    num_bytes = int(length)
    if num_bytes == REFUSED:
        raise refusal(f"broadcast_object {name!r}: rank {root_rank}", error) from error
    if num_bytes == FAILED:
        raise ValueError(
            f"broadcast_object {name!r}: rank {root_rank} could not pickle its object of type"
            f" {type(obj).__name__ if is_root else 'unknown here'}; broadcast what it is made of"
            " instead (a state_dict rather than a module, a list rather than a generator)"
        ) from error
    data = torch.empty(num_bytes, dtype=torch.uint8) if payload is None else payload
    for index, part in parts(num_bytes):
        broadcast_(data[part], root_rank, name=f"{name}.bytes.{index}", process_set=process_set)
    if is_root:
        return obj
    received: T = unpack(data, is_allowed)
    return received


def allgather_object(
    obj: T,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool | None = None,
) -> list[T]:
    """The objects of all ranks, in rank order, on every rank; collective.

    Args:
        obj: see `broadcast_object`; types and sizes may differ between ranks.
        name: of the call; needed only where several threads gather at the same time.
        process_set: the ranks that take part.
        allow_pickle: see `broadcast_object`.

    Returns:
        One object for each rank of the process set; all are copies, also the caller's own.

    Raises:
        ValueError: on every rank, where some rank could not pickle its object, or where it is not
            plain data and pickle is not allowed.
    """
    name = "allgather_object" if name is None else name
    is_allowed = is_pickle_allowed(allow_pickle)
    payload, error = pack(obj, is_allowed)
    length = torch.tensor([length_of(payload, error)])
    lengths = allgather(length, name=f"{name}.length", process_set=process_set).tolist()
    if REFUSED in lengths:
        places = [place for place, number in enumerate(lengths) if number == REFUSED]
        sender = f"allgather_object {name!r}: position(s) {places} of the process set"
        raise refusal(sender, error) from error
    if FAILED in lengths:
        failed = [place for place, number in enumerate(lengths) if number == FAILED]
        raise ValueError(
            f"allgather_object {name!r}: position(s) {failed} of the process set could not pickle"
            " their object; gather what it is made of instead"
        ) from error
    data = torch.empty(0, dtype=torch.uint8) if payload is None else payload
    received = [torch.empty(number, dtype=torch.uint8) for number in lengths]
    for index, part in parts(max(lengths)):
        gathered = allgather(data[part], name=f"{name}.bytes.{index}", process_set=process_set)
        begin = 0
        for whole in received:
            piece = whole[part]
            piece.copy_(gathered[begin : begin + piece.numel()])
            begin += piece.numel()
    return [unpack(whole, is_allowed) for whole in received]


def pack(obj: Any, is_allowed: bool) -> tuple[torch.Tensor | None, Exception | None]:
    """An object as bytes, or the error that this gave."""
    try:
        data = bytearray(encode(obj))
        check_plain(memoryview(data), allow_pickle=is_allowed)
    except Exception as error:  # whatever an object's own __reduce__ may raise
        return None, error
    return torch.frombuffer(data, dtype=torch.uint8), None


def length_of(payload: torch.Tensor | None, error: Exception | None) -> int:
    """Number of bytes, or why there are none."""
    if payload is not None:
        return payload.numel()
    return REFUSED if isinstance(error, PickleRefusedError) else FAILED


def refusal(sender: str, error: Exception | None) -> ValueError:
    """Return the error of a rank that hears that somebody's object was refused."""
    what = (
        f"has {error.asked_for} in its object"
        if isinstance(error, PickleRefusedError)
        else "has a class in its object"
    )
    return ValueError(
        f"{sender} {what} that is not plain data. Send what it is made of (numbers, texts,"
        " containers, arrays, tensors), or say allow_pickle=True at the call on all ranks:"
        " reading a pickle runs code that its sender chose"
    )


def unpack(data: torch.Tensor, is_allowed: bool) -> Any:
    """The object of these bytes, read where they are."""
    return decode(data.numpy().data, allow_pickle=is_allowed)


def parts(num_bytes: int) -> Iterator[tuple[int, slice]]:
    """Cut a length into numbered parts that one request each can move."""
    for index, begin in enumerate(range(0, num_bytes, PART)):
        yield index, slice(begin, begin + PART)
