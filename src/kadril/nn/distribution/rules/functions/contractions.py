"""Rules for products that are summed over some dims: `einsum`, `matmul`, `bmm`, `tensordot`, ...

    y[b, i, j] = sum_k a[b, i, k] c[b, k, j]

Each dim has a label. A label that is split is split by the same axis in all operands that have it:

| label | operands that have it | the others | result |
|---|---|---|---|
| in the result: b, i, j | split | whole | split |
| summed over: k | split | whole | every worker has a part of each sum: they are added up |

An operand that is split by another axis is gathered, and cut, first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from kadril import ops
from kadril.nn.distribution.layout import Layout, Subgrids
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused, Rule
from kadril.nn.distribution.rules.functions.pointwise import as_it_is
from kadril.nn.distribution.rules.whole_operands import on_replicas

__all__ = ["CONTRACTIONS", "matmul"]

# One for each dim of a tensor.
Labels = Sequence[Any]


def contraction(call: Call, labels: Sequence[tuple[fx.Node, Labels]], result: Labels) -> Decision:
    """Decide on a product of tensors that is summed over the labels its result does not have.

    Args:
        call: the product.
        labels: of the operands; one may appear twice.
        result: labels of the result.
    """
    axes = axes_of_labels(call, labels)
    wants: dict[fx.Node, Layout] = {}
    for node, own in labels:
        want = tuple(
            axes.get(label) if is_full(call, node, dim, label, labels) else None
            for dim, label in enumerate(own)
        )
        if wants.setdefault(node, want) != want:
            # A tensor times itself, with other labels: no layout suits both.
            return contraction_of_whole(call, labels, result)
    gives = tuple(axes.get(label) for label in result)
    summed = sorted({axis for label, axis in axes.items() if label not in result})
    decision = as_it_is(call, wants, gives)
    if not summed:
        return decision
    return decision._replace(make=partial(make_summed, call, summed))


def contraction_of_whole(
    call: Call, labels: Sequence[tuple[fx.Node, Labels]], result: Labels
) -> Decision:
    """Decide on the same, splitting only dims that have one label wherever a tensor appears."""
    seen: dict[tuple[fx.Node, int], Any] = {}
    several: set[Any] = set()
    for node, own in labels:
        for dim, label in enumerate(own):
            other = seen.setdefault((node, dim), label)
            several.update({label, other} if other != label else ())
    axes = {k: v for k, v in axes_of_labels(call, labels).items() if k not in several}
    wants = {node: tuple(axes.get(label) for label in own) for node, own in labels}
    decision = as_it_is(call, wants, tuple(axes.get(label) for label in result))
    summed = sorted({axis for label, axis in axes.items() if label not in result})
    return decision._replace(make=partial(make_summed, call, summed)) if summed else decision


def sizes_of_labels(call: Call, labels: Sequence[tuple[fx.Node, Labels]]) -> dict[Any, int]:
    """Return the size of each label; operands with one element there are broadcast."""
    sizes: dict[Any, int] = {}
    for node, own in labels:
        for label, size in zip(own, call.shape(node), strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return sizes


def is_full(
    call: Call,
    node: fx.Node,
    dim: int,
    label: Any,
    labels: Sequence[tuple[fx.Node, Labels]],
) -> bool:
    """Whether a dim is not broadcast."""
    return call.shape(node)[dim] == sizes_of_labels(call, labels)[label]


def axes_of_labels(call: Call, labels: Sequence[tuple[fx.Node, Labels]]) -> dict[Any, int]:
    """Return the axis that splits each label; where operands disagree, that of the largest."""
    axes: dict[Any, int] = {}
    ranked = sorted(labels, key=lambda each: -call.shapes[each[0]].numel())
    for node, own in ranked:
        for dim, (label, axis) in enumerate(zip(own, call.layout(node), strict=True)):
            is_free = axis is not None and label not in axes and axis not in axes.values()
            # A diagonal needs both of its dims whole.
            is_plain = list(own).count(label) == 1
            if (
                axis is not None
                and is_free
                and is_plain
                and is_full(call, node, dim, label, labels)
            ):
                axes[label] = axis
    diagonal = {label for _, own in labels for label in own if list(own).count(label) > 1}
    return {label: axis for label, axis in axes.items() if label not in diagonal}


def make_summed(call: Call, axes: Sequence[int], subgrids: Subgrids) -> BlockFunction:
    """Run the call on blocks, and sum what the workers have."""
    run = as_it_is(call, {}, None).make(subgrids)
    group = subgrids.group(axes) if subgrids.P.active else None

    def run_summed(*args: Any, **kwargs: Any) -> torch.Tensor:
        y: torch.Tensor = run(*args, **kwargs)
        return y if group is None else ops.total(y, group, what=call.name)

    return run_summed


def tensors_of(call: Call, values: Sequence[Any]) -> list[fx.Node]:
    """Return arguments that have to be tensors.

    Raises:
        Refused: one is none.
    """
    nodes = [each for each in values if isinstance(each, fx.Node) and call.is_tensor(each)]
    if len(nodes) != len(values):
        raise Refused("one of its operands is not a tensor")
    return nodes


def einsum(call: Call) -> Decision:
    """Decide on `torch.einsum` with an equation."""
    equation, *rest = call.node.args
    if not isinstance(equation, str):
        raise Refused("only the form with an equation is supported, such as 'bik,bkj->bij'")
    operands = rest[0] if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest
    nodes = tensors_of(call, list(operands))
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    labels = [
        (node, labels_of_term(term, len(call.shape(node))))
        for node, term in zip(nodes, terms, strict=True)
    ]
    num_dots = max(sum(isinstance(each, int) for each in own) for _, own in labels)
    if arrow:
        letters = labels_of_term(right, len(right.replace("...", "")) + num_dots * ("..." in right))
    else:
        every = "".join(term.replace("...", "") for term in terms)
        dots = list(range(-num_dots, 0))
        letters = [*dots, *sorted(each for each in set(every) if every.count(each) == 1)]
    return contraction(call, labels, letters)


def labels_of_term(term: str, num_dims: int) -> list[Any]:
    """Return the labels of one operand: letters, and numbers from the right for an ellipsis."""
    before, dots, after = term.partition("...")
    num_dots = num_dims - len(before) - len(after)
    return [*before, *(range(-num_dots, 0) if dots else ()), *after]


def matmul(call: Call) -> Decision:
    """Decide on `torch.matmul`, `mm`, `bmm`, `mv`, `dot` and `@`."""
    first, second = tensors_of(call, [*call.node.args, *call.node.kwargs.values()])
    num_first, num_second = len(call.shape(first)), len(call.shape(second))
    batch = list(range(-max(num_first - 2, num_second - 2, 0), 0))
    rows = ["i"] if num_first > 1 else []
    columns = ["j"] if num_second > 1 else []
    own_first = [*batch[len(batch) - max(0, num_first - 2) :], *rows, "k"]
    own_second = [*batch[len(batch) - max(0, num_second - 2) :], "k", *columns]
    return contraction(call, [(first, own_first), (second, own_second)], [*batch, *rows, *columns])


def outer(call: Call) -> Decision:
    """Decide on `torch.outer` and `ger`."""
    first, second = tensors_of(call, [*call.node.args, *call.node.kwargs.values()])
    return contraction(call, [(first, ["i"]), (second, ["j"])], ["i", "j"])


def tensordot(call: Call) -> Decision:
    """Decide on `torch.tensordot`."""
    first, second = tensors_of(call, list(call.node.args[:2]))
    dims = call.argument(2, "dims", 2)
    num_first, num_second = len(call.shape(first)), len(call.shape(second))
    if isinstance(dims, int):
        dims = [list(range(num_first - dims, num_first)), list(range(dims))]
    own_first: list[Any] = [("a", dim) for dim in range(num_first)]
    own_second: list[Any] = [("b", dim) for dim in range(num_second)]
    for one, other in zip(*dims, strict=True):
        own_second[other % num_second] = own_first[one % num_first]
    result = [label for label in own_first if label not in own_second]
    result += [label for label in own_second if label not in own_first]
    return contraction(call, [(first, own_first), (second, own_second)], result)


def addmm(call: Call) -> Decision:
    """Decide on `addmm` and `baddbmm`: as they are where the summed dim is whole."""
    bias, first, second = tensors_of(call, list(call.node.args[:3]))
    num_dims = call.result.dim()
    batch = list(range(-(num_dims - 2), 0))
    result = [*batch, "i", "j"]
    labels = [(first, [*batch, "i", "k"]), (second, [*batch, "k", "j"])]
    axes = {k: v for k, v in axes_of_labels(call, labels).items() if k != "k"}
    wants: dict[fx.Node, Layout] = {}
    own_bias = result[num_dims - len(call.shape(bias)) :]
    for node, own in [*labels, (bias, own_bias)]:
        sizes = call.shape(node)
        full = call.result.shape[num_dims - len(sizes) :]
        want = tuple(
            axes.get(label) if node is not bias or sizes[dim] == full[dim] else None
            for dim, label in enumerate(own)
        )
        if wants.setdefault(node, want) != want:
            return on_replicas(call)
    return as_it_is(call, wants, tuple(axes.get(label) for label in result))


CONTRACTIONS: dict[str, Rule] = {
    "einsum": einsum,
    "matmul mm bmm mv dot vdot": matmul,
    "outer ger": outer,
    "tensordot": tensordot,
    "addmm baddbmm": addmm,
}
