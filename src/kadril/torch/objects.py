"""Any picklable object, from one rank to all or from all to all.

Objects travel as pickle, which runs code when it is read. The bytes come from the ranks of this
job only, which proved at rendezvous that they know its secret: a rank trusts its peers here as much
as it trusts the program that all of them run. Bytes from anywhere else must not be fed into these.

    root    pickle ---> length (int64) ---> bytes, in parts ---> (keeps its own object)
    others              length         ---> bytes, in parts ---> unpickle

A length of -1 says that an object could not be pickled, so that no rank waits for its bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from kadril.shared_engine.basics import rank
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.torch.ops import allgather, broadcast_

__all__ = ["allgather_object", "broadcast_object"]

T = TypeVar("T")

# Bytes moved by one request. Larger objects take several: some engines below count in 32 bits.
PART = 1 << 30

FAILED = -1


def broadcast_object(
    obj: T,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> T:
    """The root's object, on every rank; collective.

    Args:
        obj: any picklable object; looked at on the root only.
        root_rank: global rank that gives it, also within a process set.
        name: of the call; needed only where several threads broadcast at the same time.
        process_set: the ranks that take part.

    Returns:
        The object itself on the root, a copy elsewhere.

    Raises:
        ValueError: on every rank, where the root could not pickle the object; on the root the
            error of pickle is its cause.
    """
    name = "broadcast_object" if name is None else name
    is_root = rank() == root_rank
    payload, error = pack(obj) if is_root else (None, None)
    length = torch.tensor([FAILED if payload is None else payload.numel()])
    broadcast_(length, root_rank, name=f"{name}.length", process_set=process_set)
    num_bytes = int(length)
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
    received: T = unpack(data)
    return received


def allgather_object(
    obj: T, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[T]:
    """The objects of all ranks, in rank order, on every rank; collective.

    Args:
        obj: any picklable object; types and sizes may differ between ranks.
        name: of the call; needed only where several threads gather at the same time.
        process_set: the ranks that take part.

    Returns:
        One object for each rank of the process set; all are copies, also the caller's own.

    Raises:
        ValueError: on every rank, where some rank could not pickle its object.
    """
    name = "allgather_object" if name is None else name
    payload, error = pack(obj)
    length = torch.tensor([FAILED if payload is None else payload.numel()])
    lengths = allgather(length, name=f"{name}.length", process_set=process_set).tolist()
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
    return [unpack(whole) for whole in received]


def pack(obj: Any) -> tuple[torch.Tensor | None, Exception | None]:
    """An object as bytes, or the error that pickling it gave."""
    try:
        data = dumps(obj)
    except Exception as error:  # whatever an object's own __reduce__ may raise
        return None, error
    return torch.frombuffer(bytearray(data), dtype=torch.uint8), None


def dumps(obj: Any) -> bytes:
    """Pickle; with cloudpickle, which knows lambdas and classes of notebooks, where it is there."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    data: bytes = cloudpickle.dumps(obj)
    return data


def unpack(data: torch.Tensor) -> Any:
    """The object of these bytes, read where they are."""
    return pickle.loads(data.numpy().data)  # noqa: S301 - from ranks of this job, see the top


def parts(num_bytes: int) -> Iterator[tuple[int, slice]]:
    """Cut a length into numbered parts that one request each can move."""
    for index, begin in enumerate(range(0, num_bytes, PART)):
        yield index, slice(begin, begin + PART)
