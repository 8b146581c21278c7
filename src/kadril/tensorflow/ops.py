"""The operations that users call: in eager mode, in `tf.function` and in TF1 graphs.

Every rank of the process set calls an operation under the same name; the order does not matter.
Without a name it is, in eager mode, the n-th of its kind, and in a graph the node's name. Gradients
are in `gradients`.

Errors are those of TensorFlow, on every rank: `InvalidArgumentError` for misuse that is found
before anything moves, `FailedPreconditionError` where ranks asked for different things under one
name, after which the next operation works, and `UnknownError` where a rank is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kadril.tensorflow import collectives
from kadril.tensorflow.basics import (
    Adasum,
    Average,
    ProcessSet,
    Sum,
    choose_op,
    context,
    global_process_set,
    is_initialized,
)
from kadril.tensorflow.compression import Compression
from kadril.tensorflow.framework import tf

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]


def number_of(process_set: ProcessSet) -> int:
    """The number of a process set.

    Raises:
        ValueError: it is not registered.
    """
    if process_set.process_set_id is None:
        raise ValueError(
            f"{process_set} is not registered; pass it to init() or add_process_set() first"
        )
    if is_initialized() and process_set.process_set_id not in context().engine.members:
        raise ValueError(f"there is no process set {process_set.process_set_id}")
    return process_set.process_set_id


def as_tensors(tensors: Sequence[Any]) -> list[Any]:
    """Tensors of what may be variables, arrays or numbers."""
    return [tf.convert_to_tensor(tensor) for tensor in tensors]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks: y = postscale * reduce_r(prescale * x_r), on every rank.

    Args:
        tensor: a tensor or variable, of the same shape and dtype on all ranks; or
            `tf.IndexedSlices`, whose rows are gathered, so that their sum is the sum of all.
        average: deprecated, use `op`.
        device_dense: where the op of a tensor is placed.
        device_sparse: where those of slices are.
        compression: e.g. `Compression.fp16`: values travel in another dtype.
        op: Average (default), Sum, Adasum, Min, Max or Product.
        prescale_factor: applied to every rank's values; to integers in float64, truncated.
        postscale_factor: applied to the result, likewise.
        name: what ranks know the operation by.
        process_set: the ranks that take part.
        ignore_name_scope: whether name scopes of the graph are no part of the name.

    Raises:
        NotImplementedError: of slices, an op other than Sum and Average, or factors.
        tf.errors.FailedPreconditionError: ranks gave different shapes, dtypes, ops or factors.
    """
    op = choose_op(op, average)
    scales = (prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        with tf.device(device_sparse):
            (result,) = reduce_slices([tensor], op, scales, name, process_set, ignore_name_scope)
        return result
    with tf.device(device_dense):
        compressed, ctx = compression.compress(tf.convert_to_tensor(tensor))
        (reduced,) = collectives.allreduce(
            [compressed],
            name=name,
            op=op,
            prescale=prescale_factor,
            postscale=postscale_factor,
            set_id=number_of(process_set),
            ignore_name_scope=ignore_name_scope,
        )
        return compression.decompress(reduced, ctx)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Any:
    """Reduce several tensors as one request, all or nothing; gives a list. See `allreduce`."""
    if not tensors:
        return tensors
    op = choose_op(op, average)
    scales = (prescale_factor, postscale_factor)
    results: list[Any] = [None] * len(tensors)
    sparse = [i for i, each in enumerate(tensors) if isinstance(each, tf.IndexedSlices)]
    dense = [i for i in range(len(tensors)) if i not in sparse]
    if sparse:
        slices = [tensors[i] for i in sparse]
        with tf.device(device_sparse):
            reduced = reduce_slices(slices, op, scales, name, process_set, ignore_name_scope)
        for i, each in zip(sparse, reduced, strict=True):
            results[i] = each
    if dense:
        with tf.device(device_dense):
            pairs = [compression.compress(each) for each in as_tensors([tensors[i] for i in dense])]
            reduced = collectives.allreduce(
                [each for each, _ in pairs],
                name=name,
                op=op,
                prescale=prescale_factor,
                postscale=postscale_factor,
                set_id=number_of(process_set),
                is_group=True,
                ignore_name_scope=ignore_name_scope,
            )
            for i, each, (_, ctx) in zip(dense, reduced, pairs, strict=True):
                results[i] = compression.decompress(each, ctx)
    return results


def reduce_slices(
    slices: Sequence[Any],
    op: int,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool,
) -> list[Any]:
    """Gather the rows of all ranks: added up they are the sum.

    Raises:
        NotImplementedError: an op other than Sum and Average, or factors.
    """
    if op == Adasum:
        raise NotImplementedError(
            "Adasum does not reduce tf.IndexedSlices; give sparse_as_dense=True to the optimizer"
        )
    if op not in (Sum, Average):
        raise NotImplementedError("tf.IndexedSlices can be reduced by Sum and Average only")
    if scales != (1.0, 1.0):
        raise NotImplementedError(
            "tf.IndexedSlices can be reduced without prescale_factor and postscale_factor only"
        )
    set_id, is_group = number_of(process_set), len(slices) > 1
    names = (None, None) if name is None else (f"{name}.values", f"{name}.indices")
    gathered = []
    for tensors, part in (
        ([each.values for each in slices], names[0]),
        ([each.indices for each in slices], names[1]),
    ):
        results, _ = collectives.allgather(
            as_tensors(tensors),
            name=part,
            set_id=set_id,
            is_group=is_group,
            ignore_name_scope=ignore_name_scope,
        )
        gathered.append(results)
    reduced = []
    for values, indices, each in zip(*gathered, slices, strict=True):
        if op == Average:
            values = values / tf.cast(size_op(set_id), values.dtype)  # noqa: PLW2901
        reduced.append(tf.IndexedSlices(values, indices, dense_shape=each.dense_shape))
    return reduced


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenate the rows of all ranks, in rank order; they may differ in number.

    Raises:
        tf.errors.FailedPreconditionError: ranks gave different dtypes, or shapes of rows.
    """
    (result,), _ = collectives.allgather(
        as_tensors([tensor]),
        name=name,
        set_id=number_of(process_set),
        ignore_name_scope=ignore_name_scope,
    )
    return result


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gather several tensors as one request, all or nothing; gives a list. See `allgather`."""
    if not tensors:
        return tensors
    results, _ = collectives.allgather(
        as_tensors(tensors),
        name=name,
        set_id=number_of(process_set),
        is_group=True,
        ignore_name_scope=ignore_name_scope,
    )
    return results


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Give every rank the root's tensor; `root_rank` is its rank in the world, also within a set.

    Raises:
        tf.errors.FailedPreconditionError: ranks gave different shapes, dtypes or roots.
        tf.errors.InvalidArgumentError: the root is not in the set.
    """
    (result,) = collectives.broadcast(
        as_tensors([tensor]),
        root_rank,
        name=name,
        set_id=number_of(process_set),
        ignore_name_scope=ignore_name_scope,
    )
    return result


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assign the root's values to variables, as one request, all or nothing; gives the new values.

    In a TF1 graph the values are tensors that assign when they are run.

    Raises:
        ValueError: variables of different kinds.
    """
    variables = [
        getattr(variable, "value", variable) if is_keras_3(variable) else variable
        for variable in variables
    ]
    if not variables:
        return []
    if len({hasattr(variable, "handle") for variable in variables}) > 1:
        raise ValueError(
            "all variables of broadcast_() have to be of one kind, resource or reference"
        )
    values = collectives.broadcast(
        as_tensors(variables), root_rank, name=name, set_id=number_of(process_set), is_group=True
    )
    assigned = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    return as_tensors(assigned)


def is_keras_3(variable: Any) -> bool:
    """Whether a variable is one of Keras 3, which holds TensorFlow's."""
    return not isinstance(variable, tf.Variable) and isinstance(
        getattr(variable, "value", None), tf.Variable
    )


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to each rank, `splits[r]` of them to rank r, or the same number to all.

    Returns:
        The rows that came, in rank order; with `splits` also how many came from each rank.

    Raises:
        tf.errors.InvalidArgumentError: splits do not add up to the rows.
    """
    given = tf.constant([], tf.int32) if splits is None else tf.convert_to_tensor(splits)
    output, received = collectives.alltoall(
        tf.convert_to_tensor(tensor),
        given,
        name=name,
        set_id=number_of(process_set),
        ignore_name_scope=ignore_name_scope,
    )
    return output if splits is None else (output, received)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce over all ranks by Sum or Average; each gets its rows, the first ones one more.

    Raises:
        tf.errors.FailedPreconditionError: ranks gave different shapes, dtypes, ops or factors.
        tf.errors.InvalidArgumentError: another op.
    """
    (result,) = scattered(
        [tensor],
        device_dense,
        compression,
        op=op,
        name=name,
        set_id=number_of(process_set),
        ignore_name_scope=ignore_name_scope,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    return result


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce and scatter several tensors as one request; gives a list. See `reducescatter`."""
    if not tensors:
        return tensors
    return scattered(
        tensors,
        device_dense,
        compression,
        op=op,
        name=None,
        set_id=number_of(process_set),
        is_group=True,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )


def scattered(tensors: Sequence[Any], device: str, compression: Any, **options: Any) -> list[Any]:
    """A reduce-scatter with compression."""
    with tf.device(device):
        pairs = [compression.compress(each) for each in as_tensors(tensors)]
        reduced = collectives.reducescatter([each for each, _ in pairs], **options)
        return [
            compression.decompress(each, ctx) for each, (_, ctx) in zip(reduced, pairs, strict=True)
        ]


def join() -> Any:
    """Say that this rank has no more data, and serve the others until all have joined.

    Returns:
        The rank that joined last, as a tensor.
    """
    return collectives.join()


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Wait until all ranks of a set have come here."""
    return collectives.barrier(number_of(process_set))


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks, asked for when the graph runs."""
    return collectives.fact("size", name, process_set_id)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 where this rank is in a process set when the graph runs, else 0; -3 without one."""
    return collectives.fact("process_set_included", name, process_set_id)


def rank_op(name: str | None = None) -> Any:
    """The rank of this process, asked for when the graph runs."""
    return collectives.fact("rank", name)


def local_rank_op(name: str | None = None) -> Any:
    """The position of this rank on its host, asked for when the graph runs."""
    return collectives.fact("local_rank", name)


def local_size_op(name: str | None = None) -> Any:
    """The number of ranks on this host, asked for when the graph runs."""
    return collectives.fact("local_size", name)
