"""All-reduce of one array or a list, in DDL's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from kadril.collectives.memory import AnyArray
from kadril.collectives.reducing import as_op
from kadril.ddl.call_log import CallRecord
from kadril.ddl.devices import synchronize
from kadril.ddl.learner import current_session
from kadril.ddl.packing import pack, unpack, write_back
from kadril.ddl.parameters import ParameterCall, describe_parameters
from kadril.ddl.session import Reduction
from kadril.errors import StateError
from kadril.transport.buffer import Array, as_buffer

__all__ = [
    "all_reduce",
    "all_reduce_",
    "all_reduce_n",
    "all_reduce_n_",
    "allreduce_n",
    "grads_reduce",
    "last_reduction",
]

ReduceOp: TypeAlias = Literal["sum", "avg"]
Variable = TypeVar("Variable")


def all_reduce(
    x: AnyArray, op: ReduceOp = "sum", mpi: bool = False, check: float = 0.0, *, name: str = ""
) -> AnyArray:
    """Add up an array over all learners; every learner gets the same bits, in a new array.

    Args:
        x: torch tensor or numpy array, of the same shape and dtype on all learners; any strides.
        op: "sum", or "avg" for the sum divided by the number of learners.
        mpi: run plain MPI_Allreduce instead, as a baseline; where MPI did not start the learners,
            the all-reduce that does not know of hosts. `last_reduction().way` says which it was.
        check: where more than 0, make the result a second time in an independent way, and compare:
            |value - reference| / max(|reference|, floor) may be at most `check`, and no value may
            be NaN or infinite. See `checking.py` for the floor.
        name: compared between learners, and shown in errors.

    Raises:
        CheckError: the two do not agree on some learner; on all of them. Those that saw it have
            written `ddl.dumpNNN` to their working directory.
        MismatchError: learners reduce different parameters; on all of them.
        ValueError: `x` requires a gradient; the average of integers; an unknown op.
        NotInitializedError: `init()` was not called.
    """
    result: AnyArray
    (result,) = reduced("all_reduce", [x], op, mpi, check, [name] if name else None)
    return result


def all_reduce_(
    x: AnyArray, op: ReduceOp = "sum", mpi: bool = False, check: float = 0.0, *, name: str = ""
) -> AnyArray:
    """Add up an array in place; see `all_reduce`. Returns `x`."""
    results = reduced("all_reduce_", [x], op, mpi, check, [name] if name else None)
    write_back(results, [x])
    return x


def all_reduce_n(
    tensors: Sequence[AnyArray],
    op: ReduceOp = "sum",
    mpi: bool = False,
    check: float = 0.0,
    *,
    names: Sequence[str] | None = None,
) -> list[AnyArray]:
    """Add up a list of arrays over all learners in one shot; returns new arrays.

    Arrays of one dtype are moved as one, whatever their shapes: many small ones take hardly longer
    than one large one. Results of one dtype are views of one piece of memory.

    Args:
        tensors: torch tensors and numpy arrays; as many, in the same order, of the same shapes and
            dtypes on all learners.
        op: see `all_reduce`.
        mpi: see `all_reduce`.
        check: see `all_reduce`.
        names: of the arrays; compared between learners, and shown in errors. Without names, arrays
            of equal shape that change places cannot be told apart.

    Raises:
        CheckError, MismatchError, ValueError, NotInitializedError: see `all_reduce`.
    """
    return reduced("all_reduce_n", tensors, op, mpi, check, names)


def all_reduce_n_(
    tensors: Sequence[AnyArray],
    op: ReduceOp = "sum",
    mpi: bool = False,
    check: float = 0.0,
    *,
    names: Sequence[str] | None = None,
) -> Sequence[AnyArray]:
    """Add up a list of arrays in place; see `all_reduce_n`. Returns `tensors`."""
    results = reduced("all_reduce_n_", tensors, op, mpi, check, names)
    write_back(results, tensors)
    return tensors


def allreduce_n(
    tensors: Sequence[AnyArray],
    average: bool | None = None,
    *,
    op: ReduceOp | None = None,
    mpi: bool = False,
    check: float = 0.0,
    names: Sequence[str] | None = None,
) -> list[AnyArray]:
    """Reduce a list as `allreduce_n` of later versions of DDL: it averages by default.

    Args:
        tensors: see `all_reduce_n`.
        average: False adds up. Leave it out where `op` is given.
        op: instead of `average`.
        mpi: see `all_reduce`.
        check: see `all_reduce`.
        names: see `all_reduce_n`.

    Raises:
        TypeError: `average` and `op` are both given.
        CheckError, MismatchError, ValueError, NotInitializedError: see `all_reduce`.
    """
    if op is not None and average is not None:
        raise TypeError("allreduce_n takes average or op, not both")
    if op is None:
        op = "sum" if average is False else "avg"
    return reduced("allreduce_n", tensors, op, mpi, check, names)


def grads_reduce(
    grads_and_vars: Sequence[tuple[AnyArray | None, Variable]], average: bool = True
) -> list[tuple[AnyArray | None, Variable]]:
    """Reduce the gradients of pairs (gradient, variable); returns new pairs.

    A pair whose gradient is None stays as it is; learners must agree on which these are.

    Raises:
        MismatchError, ValueError, NotInitializedError: see `all_reduce`.
    """
    pairs = list(grads_and_vars)
    given = [gradient for gradient, _ in pairs if gradient is not None]
    places = ["-" if gradient is None else str(place) for place, (gradient, _) in enumerate(pairs)]
    names = [f"gradient {place}" for place in places if place != "-"]
    results = iter(reduced("grads_reduce", given, "avg" if average else "sum", False, 0.0, names))
    return [(None if gradient is None else next(results), variable) for gradient, variable in pairs]


def reduced(
    operation: str,
    tensors: Sequence[Any],
    op: str,
    mpi: bool,
    check: float,
    names: Sequence[str] | None,
) -> list[Any]:
    """Reduce a list, and return new arrays."""
    session = current_session()
    arrays = list(tensors)
    for array in arrays:
        if not hasattr(array, "shape"):
            as_buffer(array)  # says what was expected
    scale = scale_of(op, arrays, session.world.size)
    if not 0.0 <= check < float("inf"):
        raise ValueError(f"check must be a number from 0, got {check}")
    options = (op, *(["mpi"] if mpi else []), *([f"check={check:g}"] if check else []))
    call = ParameterCall(operation, options, describe_parameters(arrays, names))
    if session.options.dev_sync:
        synchronize(arrays)
    packed = pack(arrays, "allreduce")
    session.reduce(Reduction(call, packed, scale, mpi, check))
    results = unpack(packed, arrays)
    if session.options.dev_sync == 2:
        synchronize(results)
    return results


def scale_of(op: str, arrays: Sequence[Array], num_learners: int) -> float:
    """Return the factor that sums are multiplied by.

    Raises:
        ValueError: there is no such op; the average of integers.
    """
    if op not in ("sum", "avg"):
        raise ValueError(f"op must be 'sum' or 'avg', got {op!r}")
    if op == "sum":
        return 1.0
    for array in arrays:
        as_op("mean", array, current_session().world)
    return 1.0 / num_learners


def last_reduction() -> CallRecord:
    """The last all-reduce of this learner: by which way, how many bytes, seconds, time per tier.

    Raises:
        StateError: there was none.
        NotInitializedError: `init()` was not called.
    """
    last = current_session().last
    if last is None:
        raise StateError("there was no all-reduce yet; call all_reduce() first")
    return last
