"""Collectives carried by Python, where there is no op library.

`tf.numpy_function` waits in a thread of TensorFlow's pool. In a TF1 session, where independent ops
run in any order, all threads would soon wait for requests that other ranks have not come to, so
that is refused. In a tf.function they run one after the other, in program order, on all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kadril import errors
from kadril.engine import Verb
from kadril.tensorflow.basics import context
from kadril.tensorflow.framework import tf
from kadril.tensorflow.naming import OpName
from kadril.tensorflow.op_errors import marked
from kadril.transport.buffer import DTYPES

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "fact",
    "join",
    "reducescatter",
]

CODES = {"half": "float16"}
Arrays = list[np.ndarray[Any, Any]]


def code_of(array: np.ndarray[Any, Any]) -> int:
    """The core's number of a dtype; bfloat16, which numpy does not know, among them."""
    return DTYPES[CODES.get(array.dtype.name, array.dtype.name)].code


def addressed(array: np.ndarray[Any, Any]) -> Any:
    """An array as the engine takes it."""
    return (array.ctypes.data, code_of(array), tuple(array.shape))


def carried(run: Callable[..., Arrays], tensors: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Run a function of arrays: at once in eager mode, else as a node of the function's graph.

    Raises:
        RuntimeError: in a TF1 graph.
    """
    if tf.executing_eagerly():
        arrays = [np.ascontiguousarray(tf.convert_to_tensor(each).numpy()) for each in tensors]
        with as_op_errors():
            return [tf.convert_to_tensor(each) for each in run(*arrays)]
    if not tf.compat.v1.get_default_graph().building_function:
        raise RuntimeError(
            "kadril.tensorflow has no op library (see the warning at its import), and without it"
            " collectives in a TF1 graph would wait for each other for ever; install a C++17"
            " compiler, or use eager mode or tf.function"
        )

    def run_arrays(*arrays: Any) -> Any:
        try:
            return run(*[np.ascontiguousarray(each) for each in arrays])
        except errors.UnsupportedError:
            raise
        except errors.KadrilError as error:
            # TensorFlow keeps of an error that it does not know no more than its text.
            raise RuntimeError(marked(error)) from error

    results = tf.numpy_function(run_arrays, list(tensors), list(dtypes))
    return list(results) if isinstance(results, list | tuple) else [results]


class as_op_errors:  # noqa: N801 - a context manager, used as a function
    """Raise errors of kadril as the errors of TensorFlow that the op library would give."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, errors.MismatchError | errors.NotInitializedError):
            raise tf.errors.FailedPreconditionError(None, None, marked(error)) from error
        if isinstance(error, errors.UnsupportedError) or (
            isinstance(error, ValueError) and not isinstance(error, errors.KadrilError)
        ):
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
        if isinstance(error, errors.KadrilError):
            raise tf.errors.UnknownError(None, None, marked(error)) from error


def request_name(named: OpName) -> str | None:
    """Return the name of the request; None where it is counted."""
    return None if named.is_counted else named.tensor or named.node


def submit(
    verb: Verb,
    arrays: Arrays,
    targets: Arrays | None,
    named: OpName,
    set_id: int,
    is_group: bool,
    **options: Any,
) -> tuple[Arrays, list[int]]:
    """Ask the engine, and wait; gives results and the rows that came from each rank."""
    conductor = context().engine.conductor(set_id)
    completion = conductor.submit(
        verb,
        [addressed(array) for array in arrays],
        None if targets is None else [addressed(array) for array in targets],
        name=request_name(named),
        is_group=is_group,
        **options,
    )
    conductor.wait(completion)
    if targets is not None:
        return targets, []
    results = []
    for (memory, _, shape), array in zip(completion.take_outputs(), arrays, strict=True):
        results.append(np.array(memory).view(array.dtype).reshape(shape))
    return results, list(completion.received_splits)


def dtypes_of(tensors: Sequence[Any]) -> list[Any]:
    """The dtypes of tensors."""
    return [tf.as_dtype(tensor.dtype) for tensor in tensors]


def shaped(results: list[Any], tensors: Sequence[Any], has_same_rows: bool) -> list[Any]:
    """Results with the shapes that are known before they are there."""
    for result, tensor in zip(results, tensors, strict=True):
        if not tf.executing_eagerly() and tensor.shape.rank is not None:
            shape = tensor.shape if has_same_rows else [None, *tensor.shape[1:]]
            result.set_shape(shape)
    return results


def differentiable(
    tensors: Sequence[Any], forward: Callable[..., Any], backward: Callable[..., Any]
) -> Any:
    """Outputs of `forward`, with the gradient `backward(inputs, outputs, grads)`."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def compute(*inputs: Any) -> Any:
        outputs = forward(*inputs)
        return outputs, lambda *grads: backward(inputs, outputs, grads)

    return compute(*tensors)


def allreduce(
    tensors: Sequence[Any],
    named: OpName,
    op: int,
    scales: tuple[float, float],
    set_id: int,
    is_group: bool,
) -> list[Any]:
    """Reduce over all ranks."""
    from kadril.tensorflow import gradients

    def run(*arrays: Any) -> Arrays:
        targets = [np.empty_like(array) for array in arrays]
        options = {"reduction": op, "prescale": scales[0], "postscale": scales[1]}
        submit(Verb.ALLREDUCE, list(arrays), targets, named, set_id, is_group, **options)
        return targets

    def forward(*inputs: Any) -> tuple[Any, ...]:
        return tuple(shaped(carried(run, inputs, dtypes_of(inputs)), inputs, True))

    def backward(inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        del outputs
        return gradients.of_allreduce(inputs, grads, op, scales, set_id)

    return list(differentiable(tensors, forward, backward))


def allgather(
    tensors: Sequence[Any], named: OpName, set_id: int, is_group: bool
) -> tuple[list[Any], Any]:
    """Concatenate rows of all ranks."""
    from kadril.tensorflow import gradients

    def run(*arrays: Any) -> Arrays:
        results, rows = submit(Verb.ALLGATHER, list(arrays), None, named, set_id, is_group)
        shape = (len(arrays), -1) if is_group else (-1,)
        return [*results, np.array(rows, np.int32).reshape(shape)]

    def forward(*inputs: Any) -> tuple[Any, ...]:
        *results, rows = carried(run, inputs, [*dtypes_of(inputs), tf.int32])
        return (*shaped(results, inputs, False), rows)

    def backward(inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        del inputs
        return gradients.of_allgather(outputs[-1], grads[:-1], set_id, is_group)

    *results, rows = differentiable(tensors, forward, backward)
    return results, rows


def broadcast(
    tensors: Sequence[Any], named: OpName, root_rank: int, set_id: int, is_group: bool
) -> list[Any]:
    """Copy the root's tensors."""
    from kadril.tensorflow import gradients

    def run(*arrays: Any) -> Arrays:
        ranks = context().engine.conductor(set_id).ranks
        if root_rank not in ranks:
            raise ValueError(f"root rank {root_rank} is not in process set {set_id}")
        targets = [np.array(array) for array in arrays]
        root = ranks.index(root_rank)
        submit(Verb.BROADCAST, list(arrays), targets, named, set_id, is_group, root=root)
        return targets

    def forward(*inputs: Any) -> tuple[Any, ...]:
        return tuple(shaped(carried(run, inputs, dtypes_of(inputs)), inputs, True))

    def backward(inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        del inputs, outputs
        return gradients.of_broadcast(grads, root_rank, set_id)

    return list(differentiable(tensors, forward, backward))


def alltoall(tensor: Any, splits: Any, named: OpName, set_id: int) -> tuple[Any, Any]:
    """Send rows to each rank."""
    from kadril.tensorflow import gradients

    def run(array: Any, rows: Any) -> Arrays:
        size = context().engine.conductor(set_id).size
        if rows.size == 0:
            if array.shape[0] % size:
                raise ValueError(
                    f"{array.shape[0]} rows cannot be dealt evenly to {size} ranks; give splits"
                )
            rows = np.full(size, array.shape[0] // size)
        if rows.size != size or rows.min() < 0 or rows.sum() != array.shape[0]:
            raise ValueError(
                f"splits {rows.tolist()} do not deal {array.shape[0]} rows to {size} ranks"
            )
        results, received = submit(
            Verb.ALLTOALL, [array], None, named, set_id, False, splits=[int(each) for each in rows]
        )
        return [*results, np.array(received, np.int32)]

    def forward(inputs: Any) -> tuple[Any, Any]:
        result, received = carried(run, [inputs, splits], [inputs.dtype, tf.int32])
        return shaped([result], [inputs], False)[0], received

    def backward(inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        del inputs
        return gradients.of_alltoall(outputs[1], grads[0], set_id)

    output, received = differentiable([tensor], forward, backward)
    return output, received


def reducescatter(
    tensors: Sequence[Any],
    named: OpName,
    op: int,
    scales: tuple[float, float],
    set_id: int,
    is_group: bool,
) -> list[Any]:
    """Reduce over all ranks; each gets its rows."""
    from kadril.tensorflow import gradients

    def run(*arrays: Any) -> Arrays:
        options = {"reduction": op, "prescale": scales[0], "postscale": scales[1]}
        arrays_ = list(arrays)
        return submit(Verb.REDUCESCATTER, arrays_, None, named, set_id, is_group, **options)[0]

    def forward(*inputs: Any) -> tuple[Any, ...]:
        return tuple(shaped(carried(run, inputs, dtypes_of(inputs)), inputs, False))

    def backward(inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        del inputs, outputs
        return gradients.of_reducescatter(grads, op, scales, set_id)

    return list(differentiable(tensors, forward, backward))


def join() -> Any:
    """Wait until all ranks have joined."""

    def run() -> Arrays:
        conductor = context().engine.everyone
        completion = conductor.submit(Verb.JOIN, [], name="join")
        conductor.wait(completion)
        conductor.restart_count()
        return [np.array(conductor.ranks[completion.last_joined], np.int32)]

    return carried(run, [], [tf.int32])[0]


def barrier(set_id: int) -> Any:
    """Wait for all ranks."""

    def run() -> Arrays:
        conductor = context().engine.conductor(set_id)
        conductor.wait(conductor.submit(Verb.BARRIER, []))
        return [np.array(0, np.int32)]

    return carried(run, [], [tf.int32])[0]


def fact(kind: str, set_id: int | None) -> Any:
    """A number of this rank, asked for when the graph runs."""

    def run() -> Arrays:
        engine = context().engine
        numbers: dict[str, Callable[[], int]] = {
            "rank": lambda: engine.world.rank,
            "size": lambda: len(engine.members[set_id or 0]),
            "local_rank": lambda: engine.world.local_rank,
            "local_size": lambda: engine.world.local_size,
            "process_set_included": functools.partial(included, set_id or 0),
        }
        return [np.array(numbers[kind](), np.int32)]

    return carried(run, [], [tf.int32])[0]


def included(set_id: int) -> int:
    """Whether this rank is in a set, as Horovod's codes say it."""
    engine = context().engine
    if set_id not in engine.members:
        return -3
    return int(engine.world.rank in engine.members[set_id])
