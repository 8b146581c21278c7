"""Rules for losses, as functions and as modules: one number that all workers know.

    loss = (sum_r l(x_r, t_r)) / n           a replicated value, see `ops.total`

Losses that are a sum over elements are computed without reduction, block by block, and added up.
Those of classes become the partitioned losses of `kadril.nn`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call
from torch.nn import functional

from kadril import ops
from kadril.nn.distribution.layout import Layout, Subgrids, axes_of
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused, Rule
from kadril.nn.distribution.rules.functions.pointwise import common_layout, share_of
from kadril.nn.loss import elementwise
from kadril.nn.loss.classes import DistributedCrossEntropyLoss, DistributedNLLLoss
from kadril.nn.loss.loss_layer import wide

__all__ = ["LOSS_FUNCTIONS", "LOSS_LAYERS"]

# By the name of the module without "Loss": functions whose elements do not depend on each other.
ELEMENTWISE: dict[str, Any] = {
    "L1": functional.l1_loss,
    "MSE": functional.mse_loss,
    "SmoothL1": functional.smooth_l1_loss,
    "Huber": functional.huber_loss,
    "BCE": functional.binary_cross_entropy,
    "BCEWithLogits": functional.binary_cross_entropy_with_logits,
    "KLDiv": functional.kl_div,
    "PoissonNLL": functional.poisson_nll_loss,
    "SoftMargin": functional.soft_margin_loss,
    "HingeEmbedding": functional.hinge_embedding_loss,
    "MarginRanking": functional.margin_ranking_loss,
}
TWINS = ["L1", "MSE", "SmoothL1", "Huber", "BCE", "BCEWithLogits", "KLDiv", "PoissonNLL"]
CLASS_LOSSES: dict[Any, tuple[Any, Any]] = {
    functional.cross_entropy: (nn.CrossEntropyLoss, DistributedCrossEntropyLoss),
    functional.nll_loss: (nn.NLLLoss, DistributedNLLLoss),
}


def sizes_of(call: Call) -> tuple[int, ...]:
    """Return the shape that the operands of an element-wise loss are broadcast to."""
    shapes = [call.shape(each) for each in call.operands]
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def elementwise_decision(
    call: Call, reduction: str, run: BlockFunction, args: Sequence[Any], kwargs: dict[str, Any]
) -> Decision:
    """Decide on a loss that is a sum over elements.

    Args:
        call: the loss.
        reduction: that it makes.
        run: the loss without reduction.
        args: what `run` is called with.
        kwargs: the same, by name.
    """
    if reduction not in ("mean", "sum", "none", "batchmean"):
        raise Refused(f"reduction={reduction!r} is not supported")
    sizes = sizes_of(call)
    layout = common_layout(sizes, [(call.shape(each), call.layout(each)) for each in call.operands])
    wants = {each: share_of(layout, sizes, call.shape(each)) for each in call.operands}
    if reduction == "none":
        return Decision(wants, layout, lambda subgrids: run, args=args, kwargs=kwargs)
    make = partial(make_reduced, run, layout, reduction, call.name)
    return Decision(wants, (), make, args=args, kwargs=kwargs)


def make_reduced(
    run: BlockFunction, layout: Layout, reduction: str, what: str, subgrids: Subgrids
) -> BlockFunction:
    """Sum the losses of all elements, and count what they are divided by."""
    group = subgrids.group(axes_of(layout)) if subgrids.P.active else None
    # Of the workers, those along the first dim have different samples.
    num_alike = math.prod(subgrids.P.shape[axis] for axis in axes_of(layout[1:]))

    def reduced(*args: Any, **kwargs: Any) -> torch.Tensor:
        elements: torch.Tensor = run(*args, **kwargs)
        if group is None:
            return elements.sum()
        num = {"sum": 0.0, "mean": elements.numel(), "batchmean": len(elements) / num_alike}
        parts = torch.stack(
            [wide(elements).sum().double(), elements.new_tensor(num[reduction]).double()]
        )
        total, count = ops.total(parts, group, what=what).unbind()
        return (total if reduction == "sum" else total / count).to(elements.dtype)

    return reduced


def elementwise_function(function: Callable[..., torch.Tensor]) -> Rule:
    """Return the rule for a loss as a function."""

    def rule(call: Call) -> Decision:
        names = arguments_of(function)
        given = {**dict(zip(names, call.node.args, strict=False)), **call.node.kwargs}
        refuse_old_words(given)
        reduction = given.pop("reduction", "mean")
        operands = [given.pop(name) for name in names[:2]]
        run = partial(function, reduction="none")
        return elementwise_decision(call, str(reduction), run, operands, given)

    return rule


def refuse_old_words(given: dict[str, Any]) -> None:
    """Refuse the arguments that torch had before `reduction`.

    Raises:
        Refused: one was given.
    """
    for name in ("size_average", "reduce"):
        if given.pop(name, None) is not None:
            raise Refused(f"it is called with {name}; use reduction")


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a function, in order."""
    code: Any = function.__code__
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def elementwise_layer(twin_class: Any) -> Rule:
    """Return the rule for a loss as a module that has a partitioned twin."""

    def rule(call: Call) -> Decision:
        first, target = pair_of(call)
        module: Any = call.module
        layout = common_layout(
            call.shape(first), [(call.shape(n), call.layout(n)) for n in (first, target)]
        )
        gives = layout if module.reduction == "none" else ()
        make = partial(make_loss, twin_class, module, layout, call.name)
        return Decision({first: layout, target: layout}, gives, make)

    return rule


def pair_of(call: Call) -> tuple[fx.Node, fx.Node]:
    """Return input and target.

    Raises:
        Refused: they are the same, or of different shapes.
    """
    values = [*call.node.args, *call.node.kwargs.values()]
    nodes = [each for each in values if isinstance(each, fx.Node) and call.is_tensor(each)]
    if len(nodes) != 2 or nodes[0] is nodes[1]:
        raise Refused("it needs an input and a target, which are different tensors")
    if call.shape(nodes[0]) != call.shape(nodes[1]):
        raise Refused(
            f"input and target have shapes {call.shape(nodes[0])} and {call.shape(nodes[1])};"
            " expand one of them"
        )
    return nodes[0], nodes[1]


def make_loss(
    twin_class: Any, module: nn.Module, layout: Layout, name: str, subgrids: Subgrids
) -> BlockFunction:
    """Make the partitioned loss."""
    made: nn.Module = twin_class.of(module, subgrids.partition(layout), what=name)
    return made.train(module.training)


def plain_layer_loss(function: Callable[..., torch.Tensor]) -> Rule:
    """Return the rule for a loss as a module without a twin: its function is used."""

    def rule(call: Call) -> Decision:
        module: Any = call.module
        names = [each for each in arguments_of(function) if each in module.__dict__]
        settings = {name: getattr(module, name) for name in names if name != "reduction"}
        run = partial(function, reduction="none", **settings)
        args, kwargs = list(call.node.args), dict(call.node.kwargs)
        return elementwise_decision(call, module.reduction, run, args, kwargs)

    return rule


def class_decision(call: Call, module: Any, twin_class: Any, nodes: Sequence[fx.Node]) -> Decision:
    """Decide on a loss of classes.

    Raises:
        Refused: there is no dim for the batch.
    """
    first, target = nodes
    layout = call.layout(first)
    if len(layout) < 2:
        raise Refused("its input has one dim; give it a dim for the batch too")
    wanted = layout if len(call.shape(target)) == len(layout) else (layout[0], *layout[2:])
    gives = () if module.reduction != "none" else (layout[0], *layout[2:])
    make = partial(make_loss, twin_class, module, layout, call.name)
    return Decision({first: layout, target: wanted}, gives, make)


def class_function(function: Callable[..., torch.Tensor]) -> Rule:
    """Return the rule for `F.cross_entropy` or `F.nll_loss`."""
    layer_class, twin_class = CLASS_LOSSES[function]

    def rule(call: Call) -> Decision:
        names = arguments_of(function)
        given: dict[str, Any] = dict(zip(names, call.node.args, strict=False))
        given.update(call.node.kwargs)
        refuse_old_words(given)
        first, target, weight = given.pop("input"), given.pop("target"), given.pop("weight", None)
        module = layer_class(**given)
        tensors = {}
        if isinstance(weight, fx.Node):
            tensors["weight"] = weight
            module.weight = torch.empty_like(call.shapes[weight], device="meta")
        decision = class_decision(call, module, twin_class, [first, target])
        wants = {**decision.wants, **dict.fromkeys(tensors.values(), (None,))}
        make = partial(make_class_function, decision.make)
        return decision._replace(wants=wants, make=make, args=(first, target, tensors), kwargs={})

    return rule


def make_class_function(make: Callable[[Subgrids], Any], subgrids: Subgrids) -> BlockFunction:
    """Make the partitioned loss, which takes its weight in each call."""
    layer = make(subgrids)

    def run(x: torch.Tensor, target: torch.Tensor, tensors: dict[str, torch.Tensor]) -> Any:
        return functional_call(layer, dict(tensors), (x, target))

    return run


def class_layer(twin_class: Any) -> Rule:
    """Return the rule for `nn.CrossEntropyLoss` or `nn.NLLLoss`."""

    def rule(call: Call) -> Decision:
        given = {**dict(zip(["input", "target"], call.node.args, strict=False)), **call.node.kwargs}
        nodes: list[Any] = [given["input"], given["target"]]
        return class_decision(call, call.module, twin_class, nodes)

    return rule


LOSS_FUNCTIONS: dict[Any, Rule] = {
    **{function: elementwise_function(function) for function in ELEMENTWISE.values()},
    **{function: class_function(function) for function in CLASS_LOSSES},
}
LOSS_LAYERS: dict[type[nn.Module], Rule] = {
    getattr(nn, f"{name}Loss"): elementwise_layer(getattr(elementwise, f"Distributed{name}Loss"))
    if name in TWINS
    else plain_layer_loss(function)
    for name, function in ELEMENTWISE.items()
}
LOSS_LAYERS.update({layer: class_layer(twin) for layer, twin in CLASS_LOSSES.values()})
