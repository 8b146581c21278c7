"""Rules for functions that are layers without parameters: pools, interpolation, dropouts.

F.max_pool2d(x, 2)      the rule for nn.MaxPool2d(2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from kadril.nn.distribution.layout import Subgrids
from kadril.nn.distribution.nested import leaves
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused, Rule
from kadril.nn.distribution.rules.layer_table import LAYERS
from kadril.nn.distribution.rules.layers.layer_call import LayerCall

__all__ = ["LAYER_FUNCTIONS"]

# Arguments of functions that are a layer, in their order, after the tensor.
POOL = ["kernel_size", "stride", "padding"]
MAX_POOL = [*POOL, "dilation", "ceil_mode", "return_indices"]
AVG_POOL = [*POOL, "ceil_mode", "count_include_pad"]
INTERPOLATE = ["size", "scale_factor", "mode", "align_corners", "recompute_scale_factor"]


def layer_function(layer_class: Any, names: Sequence[str]) -> Rule:
    """Return the rule for a function that does what a layer does.

    Args:
        layer_class: of torch.
        names: of its arguments, in the function's order.
    """

    def values_of(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        return {name: value for name, value in values.items() if name in names}

    def decide(call: Call, values: dict[str, Any]) -> Decision:
        unknown = {"antialias", "divisor_override"} & {
            name for name, value in call.node.kwargs.items() if value
        }
        if unknown or len(call.node.args) > len(names) + 1:
            raise Refused(f"{', '.join(unknown) or 'these arguments'}: not supported")
        return LAYERS[layer_class](LayerCall(call, layer_class(**values), call.operand))

    def rule(call: Call) -> Decision:
        operand = call.node.args[0] if call.node.args else None
        if not isinstance(operand, fx.Node):
            raise Refused("its first argument must be the tensor")
        rest, named = tuple(call.node.args[1:]), dict(call.node.kwargs)
        decision = decide(call, values_of(call.example_of(rest), call.example_of(named)))
        if not any(isinstance(each, fx.Node) for each in leaves([rest, named])):
            return decision._replace(args=(operand,), kwargs={})

        # Some arguments are computed from shapes: a layer for each of their values.
        def make(subgrids: Subgrids) -> BlockFunction:
            made: dict[str, BlockFunction] = {}

            def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                values = values_of(args, kwargs)
                if repr(values) not in made:
                    made[repr(values)] = decide(call, values).make(subgrids)
                return made[repr(values)](x)

            return run

        return decision._replace(make=make)

    return rule


def dropout(layer_class: Any) -> Rule:
    """Return the rule for `F.dropout` and its like, whose mode is known from tracing."""

    def rule(call: Call) -> Decision:
        operand = call.operand
        layout = call.layout(operand)
        if not call.argument(2, "training", True):
            return Decision({operand: layout}, layout, make_identity, args=(operand,), kwargs={})
        module = layer_class(call.argument(1, "p", 0.5), call.argument(3, "inplace", False))
        decision = LAYERS[layer_class](LayerCall(call, module, operand))
        return decision._replace(args=(operand,), kwargs={})

    return rule


def make_identity(subgrids: Subgrids) -> BlockFunction:
    """Make the identity."""
    return lambda x: x


def pool_functions() -> dict[str, Rule]:
    """Return the rules for pools, by name."""
    rules: dict[str, Rule] = {}
    for num in (1, 2, 3):
        for kind, names in (("Max", MAX_POOL), ("Avg", AVG_POOL)):
            pool = getattr(nn, f"{kind}Pool{num}d")
            rules[f"{kind.lower()}_pool{num}d"] = layer_function(pool, names)
            own = ["output_size", *(["return_indices"] if kind == "Max" else [])]
            pool = getattr(nn, f"Adaptive{kind}Pool{num}d")
            rules[f"adaptive_{kind.lower()}_pool{num}d"] = layer_function(pool, own)
    return rules


LAYER_FUNCTIONS: dict[str, Rule] = {
    "interpolate": layer_function(nn.Upsample, INTERPOLATE),
    **pool_functions(),
    "dropout": dropout(nn.Dropout),
    "dropout1d": dropout(nn.Dropout1d),
    "dropout2d": dropout(nn.Dropout2d),
    "dropout3d": dropout(nn.Dropout3d),
    "alpha_dropout": dropout(nn.AlphaDropout),
}
