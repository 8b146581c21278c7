"""The collectives as ops: issued by the op library, or by Python where that cannot be had.

Each function takes the number of a process set and returns tensors; what users call is in `ops`.
Groups are lists of tensors that are served all or nothing; a list of one is a single op.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from kadril.tensorflow import op_library, python_ops
from kadril.tensorflow.framework import tf
from kadril.tensorflow.naming import OpName, name_op

__all__ = [
    "LIBRARY",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "fact",
    "from_bits",
    "join",
    "reducescatter",
]

LIBRARY: Any = op_library.load()

Tensors = Sequence[Any]

# Ops that neither wait for each other in a tf.function nor are kept if nobody uses their result.
ASYNCHRONOUS = (
    "HorovodAllreduce",
    "HorovodGroupedAllreduce",
    "HorovodAllgather",
    "HorovodGroupedAllgather",
    "HorovodBroadcast",
    "HorovodGroupedBroadcast",
    "HorovodAlltoall",
    "HorovodReducescatter",
    "HorovodGroupedReducescatter",
    "HorovodRank",
    "HorovodSize",
    "HorovodLocalRank",
    "HorovodLocalSize",
    "HorovodProcessSetIncluded",
)


def list_as_asynchronous() -> None:
    """Have TensorFlow treat the ops as its own collectives: in no order among themselves.

    Automatic control dependencies would keep program order, and ranks whose programs differ in it
    would wait for each other for ever.
    """
    from tensorflow.python.framework import auto_control_deps

    known = auto_control_deps.ASYNC_STATEFUL_OPS
    auto_control_deps.ASYNC_STATEFUL_OPS = type(known)([*known, *ASYNCHRONOUS])


if LIBRARY is not None:
    list_as_asynchronous()


def naming(op: OpName, set_id: int) -> dict[str, Any]:
    """Attributes that all ops have."""
    return {
        "name": op.node,
        "tensor_name": op.tensor,
        "is_counted": op.is_counted,
        "is_eager": op.node is None,
        "process_set_id": set_id,
    }


def bits_of(factor: float) -> int:
    """The bits of a factor, as an attribute: a float of TensorFlow's has half of them."""
    (bits,) = struct.unpack("<q", struct.pack("<d", factor))
    return int(bits)


def from_bits(bits: int) -> float:
    """The factor that an attribute has the bits of."""
    (factor,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(factor)


def allreduce(
    tensors: Tensors,
    *,
    name: str | None,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    set_id: int = 0,
    is_group: bool = False,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """Reduce tensors over all ranks of a set."""
    kind = "HorovodGroupedAllreduce" if is_group else "HorovodAllreduce"
    named = name_op(kind, name, tensors, ignore_name_scope)
    if LIBRARY is None:
        return python_ops.allreduce(tensors, named, op, (prescale, postscale), set_id, is_group)
    attributes = {
        **naming(named, set_id),
        "reduce_op": op,
        "prescale_bits": bits_of(prescale),
        "postscale_bits": bits_of(postscale),
        "ignore_name_scope": ignore_name_scope,
    }
    if is_group:
        return list(LIBRARY.horovod_grouped_allreduce(tensors=tensors, **attributes))
    return [LIBRARY.horovod_allreduce(tensor=tensors[0], **attributes)]


def allgather(
    tensors: Tensors,
    *,
    name: str | None,
    set_id: int = 0,
    is_group: bool = False,
    ignore_name_scope: bool = False,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Concatenate rows of all ranks; also gives the rows of each, for each tensor of a group."""
    kind = "HorovodGroupedAllgather" if is_group else "HorovodAllgather"
    named = name_op(kind, name, tensors, ignore_name_scope)
    if LIBRARY is None:
        return python_ops.allgather(tensors, named, set_id, is_group)
    attributes = {**naming(named, set_id), "ignore_name_scope": ignore_name_scope}
    if is_group:
        result = LIBRARY.horovod_grouped_allgather(tensors=tensors, **attributes)
        return list(result.output), result.rows
    result = LIBRARY.horovod_allgather(tensor=tensors[0], **attributes)
    return [result.output], result.rows


def broadcast(
    tensors: Tensors,
    root_rank: int,
    *,
    name: str | None,
    set_id: int = 0,
    is_group: bool = False,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """Copy the root's tensors to all ranks."""
    kind = "HorovodGroupedBroadcast" if is_group else "HorovodBroadcast"
    named = name_op(kind, name, tensors, ignore_name_scope)
    if LIBRARY is None:
        return python_ops.broadcast(tensors, named, root_rank, set_id, is_group)
    attributes = {
        **naming(named, set_id),
        "root_rank": root_rank,
        "ignore_name_scope": ignore_name_scope,
    }
    if is_group:
        return list(LIBRARY.horovod_grouped_broadcast(tensors=tensors, **attributes))
    return [LIBRARY.horovod_broadcast(tensor=tensors[0], **attributes)]


def alltoall(
    tensor: Any, splits: Any, *, name: str | None, set_id: int = 0, ignore_name_scope: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Send rows to each rank; gives the rows that came, and how many from each."""
    named = name_op("HorovodAlltoall", name, [tensor], ignore_name_scope)
    if LIBRARY is None:
        return python_ops.alltoall(tensor, splits, named, set_id)
    result = LIBRARY.horovod_alltoall(
        tensor=tensor, splits=splits, ignore_name_scope=ignore_name_scope, **naming(named, set_id)
    )
    return result.output, result.received_splits


def reducescatter(
    tensors: Tensors,
    *,
    name: str | None,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    set_id: int = 0,
    is_group: bool = False,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """Reduce over all ranks of a set; each gets its rows."""
    kind = "HorovodGroupedReducescatter" if is_group else "HorovodReducescatter"
    named = name_op(kind, name, tensors, ignore_name_scope)
    if LIBRARY is None:
        return python_ops.reducescatter(tensors, named, op, (prescale, postscale), set_id, is_group)
    attributes = {
        **naming(named, set_id),
        "reduce_op": op,
        "prescale_bits": bits_of(prescale),
        "postscale_bits": bits_of(postscale),
        "ignore_name_scope": ignore_name_scope,
    }
    if is_group:
        return list(LIBRARY.horovod_grouped_reducescatter(tensors=tensors, **attributes))
    return [LIBRARY.horovod_reducescatter(tensor=tensors[0], **attributes)]


def join() -> tf.Tensor:
    """Say that this rank has no more data; gives the rank that joined last."""
    return python_ops.join() if LIBRARY is None else LIBRARY.horovod_join()


def barrier(set_id: int = 0) -> Any:
    """Wait for all ranks of a set."""
    if LIBRARY is None:
        return python_ops.barrier(set_id)
    return LIBRARY.horovod_barrier(**naming(name_op("HorovodBarrier", None, []), set_id))


def fact(kind: str, name: str | None, set_id: int | None = None) -> tf.Tensor:
    """A number that is asked for when the graph runs: "rank", "size" and the like."""
    if LIBRARY is None:
        return python_ops.fact(kind, set_id)
    attributes = {} if set_id is None else {"process_set_id": set_id}
    return getattr(LIBRARY, f"horovod_{kind}")(name=name, **attributes)
