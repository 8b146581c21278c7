"""IBM DDL's operators for TensorFlow, in graphs and in eager mode: `import kadril.tensorflow.ddl`.

    with tf.compat.v1.Session() as session:
        rank, size, gpuid = session.run(ddl.init(4, mode="-mode n"))
    ...
    start = [variable.assign(ddl.bcast(variable)) for variable in variables]
    gradients = ddl.all_reduce_n(gradients, op="avg", check=0.17)

They are the collectives of `kadril.tensorflow` under other names, so learners may come to them in
any order. Tiers, exploration and reports are in `kadril.ddl`, for torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kadril.tensorflow import basics, ops
from kadril.tensorflow.framework import tf

__all__ = [
    "AllReduce",
    "AllReduceN",
    "Bcast",
    "Init",
    "all_reduce",
    "all_reduce_n",
    "bcast",
    "init",
]

OPS = {"sum": basics.Sum, "avg": basics.Average}


def init(num_gpu: int, mode: str = "") -> tuple[Any, Any, Any]:
    """Meet the other learners; collective, when the ops are made.

    Args:
        num_gpu: accelerators of each host.
        mode: options of DDL, such as "-mode n:4x3 -dump_iter 100"; the transport of the job, and
            not these, decides how data travels.

    Returns:
        Tensors: rank, size, and the accelerator that this learner is to use.

    Raises:
        ValueError: less than one accelerator, or a mode that is not made of options.
    """
    if num_gpu < 1:
        raise ValueError(f"init() needs the number of accelerators of a host, got {num_gpu}")
    if mode and not mode.lstrip().startswith("-"):
        raise ValueError(f"mode is made of options such as '-mode n -dump_iter 100', not {mode!r}")
    basics.init()
    return ops.rank_op(), ops.size_op(), tf.constant(basics.local_rank() % num_gpu, tf.int32)


def bcast(tensor: Any, name: str | None = None) -> Any:
    """Give every learner the tensor of rank 0."""
    return ops.broadcast(tensor, 0, name=name)


def all_reduce(
    tensor: Any,
    op: str = "sum",
    mpi: bool = False,
    check: float = 0.0,
    name: str | None = None,
) -> Any:
    """Add up, or average, a tensor over all learners.

    Args:
        tensor: of the same shape and dtype on all of them.
        op: "sum" or "avg".
        mpi: have MPI_Allreduce do it, which needs a job that MPI carries.
        check: where it is more than 0, the relative error above which the result is refused, held
            against the tensors of all learners added up in float64, in rank order.
        name: what learners know it by.

    Raises:
        ValueError: there is no such op, or `mpi` in a job without MPI.
        tf.errors.InvalidArgumentError: the check failed, or found a NaN.
    """
    (result,) = all_reduce_n([tensor], op, mpi, check, name)
    return result


def all_reduce_n(
    tensors: Sequence[Any],
    op: str = "sum",
    mpi: bool = False,
    check: float = 0.0,
    name: str | None = None,
) -> list[Any]:
    """Add up, or average, several tensors in one shot. See `all_reduce`."""
    if op not in OPS:
        raise ValueError(f"there is no op {op!r}; use 'sum' or 'avg'")
    if mpi and not basics.mpi_enabled():
        raise ValueError(
            "mpi=True asks for MPI_Allreduce, and MPI does not carry this job: start it with"
            " mpirun, or set KADRIL_TRANSPORT=mpi"
        )
    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    results = list(ops.grouped_allreduce(given, op=OPS[op], name=name))
    if check <= 0:
        return results
    checked = None if name is None else f"{name}.check"
    gathered = ops.grouped_allgather([tensor[None] for tensor in given], name=checked)
    return [
        compared(result, everyone, op, check)
        for result, everyone in zip(results, gathered, strict=True)
    ]


def compared(result: Any, everyone: Any, op: str, check: float) -> Any:
    """A result that is close to the sum, or mean, of the tensors of all learners."""
    wide = tf.cast(everyone, tf.float64)
    expected = tf.reduce_sum(wide, axis=0) if op == "sum" else tf.reduce_mean(wide, axis=0)
    found = tf.cast(result, tf.float64)
    error = tf.abs(tf.math.divide_no_nan(found - expected, expected))
    worst = tf.reduce_max(
        tf.where(tf.math.is_nan(found), tf.constant(float("inf"), tf.float64), error)
    )
    message = "the all-reduce differs from the sum of what the learners gave by a relative error of"
    is_close = tf.debugging.Assert(worst <= check, [message, worst, "and check allows", check])
    with tf.control_dependencies([] if is_close is None else [is_close]):
        return tf.identity(result)


Init = init
Bcast = bcast
AllReduce = all_reduce
AllReduceN = all_reduce_n
