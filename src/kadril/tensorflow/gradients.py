"""Gradients of the collectives, by Horovod's convention.

    operation            backward, with g the gradients of the results
    allreduce Sum        allreduce Sum of g; the same for Average, with the same factors
    allreduce Min, Max   the sum of g, to the lowest rank that has the extreme value
    allreduce Product    the sum of g times the product of the others' values
    allreduce Adasum     refused: its derivative depends on all ranks' values
    allgather            this rank's rows of the mean of g
    broadcast            the mean of g on the root, zero elsewhere
    alltoall             alltoall of g, back
    reducescatter        allgather of g, times n for Sum

They are made of the same ops, so they can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kadril.tensorflow import collectives
from kadril.tensorflow.basics import Adasum, Average, Max, Min, Sum, rank, set_by_id
from kadril.tensorflow.framework import tf

__all__ = [
    "of_allgather",
    "of_allreduce",
    "of_alltoall",
    "of_broadcast",
    "of_reducescatter",
]

Scales = tuple[float, float]


def reduced(tensor: Any, op: int, set_id: int, scales: Scales = (1.0, 1.0)) -> Any:
    """One tensor over all ranks of a set."""
    prescale, postscale = scales
    (result,) = collectives.allreduce(
        [tensor], name=None, op=op, prescale=prescale, postscale=postscale, set_id=set_id
    )
    return result


def of_allreduce(
    inputs: Sequence[Any], grads: Sequence[Any], op: int, scales: Scales, set_id: int
) -> list[Any]:
    """Gradients of the inputs of an all-reduce, each by itself: dtypes of a group may differ.

    Raises:
        NotImplementedError: of Adasum.
    """
    if op in (Sum, Average):
        return [reduced(grad, op, set_id, scales) for grad in grads]
    if op == Adasum:
        raise NotImplementedError(
            "the gradient of an all-reduce with op=Adasum is not there in TensorFlow; reduce"
            " gradients with Adasum, and not what a loss is computed from"
        )
    factor = scales[0] * scales[1]
    results = []
    for tensor, grad in zip(inputs, grads, strict=True):
        total = reduced(grad, Sum, set_id)
        scaled = tensor * tf.cast(scales[0], tensor.dtype)
        through = through_extreme if op in (Min, Max) else through_product
        results.append(through(scaled, total, op, set_id) * tf.cast(factor, tensor.dtype))
    return results


def through_extreme(tensor: Any, total: Any, op: int, set_id: int) -> Any:
    """A gradient where this rank is the lowest that has the extreme value, zero elsewhere."""
    process_set = set_by_id(set_id)
    tensor = tf.stop_gradient(tensor)
    is_mine = tf.equal(tensor, reduced(tensor, op, set_id))
    claims = tf.where(is_mine, process_set.rank(), process_set.size())
    owner = reduced(tf.cast(claims, tf.int32), Min, set_id)
    return tf.where(tf.equal(owner, process_set.rank()), total, tf.zeros_like(total))


def through_product(tensor: Any, total: Any, op: int, set_id: int) -> Any:
    """A gradient times the product over all ranks but this; exact also where factors are zero."""
    del op
    process_set = set_by_id(set_id)
    mine, others = process_set.rank(), tf.ones_like(tensor)
    everyone = stack_all(tensor, set_id)
    for member in range(process_set.size() or 0):
        if member != mine:
            others = others * everyone[member]
    return total * tf.math.conj(others)


def stack_all(tensor: Any, set_id: int) -> Any:
    """The tensors of all ranks along a new first dim; its adjoint is the sum."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def stack(mine: Any) -> Any:
        (everyone,), _ = collectives.allgather([mine[None]], name=None, set_id=set_id)
        return everyone, lambda grad: reduced(grad, Sum, set_id)[set_by_id(set_id).rank()]

    return stack(tensor)


def of_allgather(rows: Any, grads: Sequence[Any], set_id: int, is_group: bool) -> list[Any]:
    """Gradients of the inputs of an all-gather; `rows` are those of each rank."""
    process_set = set_by_id(set_id)
    results = []
    for index, grad in enumerate(grads):
        mean = reduced(grad, Average, set_id)
        counts = rows[index] if is_group else rows
        mine = process_set.rank()
        # Not by tf.split: a part's number is in its name, and so in those of ops that it is fed to.
        start = tf.reduce_sum(counts[:mine])
        results.append(mean[start : start + counts[mine]])
    return results


def of_broadcast(grads: Sequence[Any], root_rank: int, set_id: int) -> list[Any]:
    """Gradients of the inputs of a broadcast."""
    means = [reduced(grad, Average, set_id) for grad in grads]
    # Times zero, rather than zeros: the op must run here too, and not be pruned. And times one on
    # the root: with a node less there, ranks would have other names for all ops that come after it.
    return [mean * tf.cast(rank() == root_rank, mean.dtype) for mean in means]


def of_alltoall(received_splits: Any, grad: Any, set_id: int) -> list[Any]:
    """The gradient of the tensor of an all-to-all."""
    back, _ = collectives.alltoall(grad, received_splits, name=None, set_id=set_id)
    return [back]


def of_reducescatter(grads: Sequence[Any], op: int, scales: Scales, set_id: int) -> list[Any]:
    """Gradients of the inputs of a reduce-scatter."""
    factor = scales[0] * scales[1]
    if op == Sum:
        factor *= set_by_id(set_id).size() or 1
    results = []
    for grad in grads:
        scaled = grad if factor == 1.0 else grad * tf.cast(factor, grad.dtype)
        (gathered,), _ = collectives.allgather([scaled], name=None, set_id=set_id)
        results.append(gathered)
    return results


def set_of(op: Any) -> int:
    """The number of an op's process set."""
    return int(op.get_attr("process_set_id"))


def scales_of(op: Any) -> Scales:
    """The factors of an op."""
    bits = (op.get_attr("prescale_bits"), op.get_attr("postscale_bits"))
    return collectives.from_bits(bits[0]), collectives.from_bits(bits[1])


def allreduce(op: Any, *grads: Any) -> Any:
    """Gradients of one or several tensors."""
    reduction = int(op.get_attr("reduce_op"))
    return of_allreduce(op.inputs, grads, reduction, scales_of(op), set_of(op))


def allgather(op: Any, grad: Any, _: Any) -> Any:
    """Gradient of one tensor; the rows of each rank have no gradient."""
    return of_allgather(op.outputs[1], [grad], set_of(op), False)


def grouped_allgather(op: Any, *grads: Any) -> Any:
    """Gradients of several tensors."""
    return of_allgather(op.outputs[-1], grads[:-1], set_of(op), True)


def broadcast(op: Any, *grads: Any) -> Any:
    """Gradients of one or several tensors."""
    return of_broadcast(grads, int(op.get_attr("root_rank")), set_of(op))


def alltoall(op: Any, grad: Any, _: Any) -> Any:
    """Gradient of a tensor; splits have no gradient."""
    return [*of_alltoall(op.outputs[1], grad, set_of(op)), None]


def reducescatter(op: Any, *grads: Any) -> Any:
    """Gradients of one or several tensors."""
    reduction = int(op.get_attr("reduce_op"))
    return of_reducescatter(grads, reduction, scales_of(op), set_of(op))


GRADIENTS = {
    "Allreduce": allreduce,
    "GroupedAllreduce": allreduce,
    "Allgather": allgather,
    "GroupedAllgather": grouped_allgather,
    "Broadcast": broadcast,
    "GroupedBroadcast": broadcast,
    "Alltoall": alltoall,
    "Reducescatter": reducescatter,
    "GroupedReducescatter": reducescatter,
}
WITHOUT = ("Join", "Size", "Rank", "LocalSize", "LocalRank", "ProcessSetIncluded")


def register() -> None:
    """Tell TensorFlow the gradients of the ops of the op library."""
    for name, function in GRADIENTS.items():
        tf.RegisterGradient(f"Horovod{name}")(function)
    for name in WITHOUT:
        tf.no_gradient(f"Horovod{name}")


if collectives.LIBRARY is not None:
    register()
