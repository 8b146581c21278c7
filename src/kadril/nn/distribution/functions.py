"""Rules for functions and methods: what may be called in `forward` besides modules."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from kadril.nn.distribution.assign import setitem
from kadril.nn.distribution.call import Call, Decision, Refused, Rule, Running
from kadril.nn.distribution.factories import FILLS
from kadril.nn.distribution.layers import LAYERS
from kadril.nn.distribution.layout import Lines
from kadril.nn.distribution.pointwise import as_it_is, cat, pointwise, stack
from kadril.nn.distribution.reduce import along, extreme, mean, summed
from kadril.nn.distribution.reshape import expand, permute, reshape
from kadril.nn.distribution.rules.attention import attention
from kadril.nn.distribution.rules.contractions import CONTRACTIONS, matmul
from kadril.nn.distribution.rules.extremes import EXTREMES
from kadril.nn.distribution.rules.functional_layers import FUNCTIONAL_LAYERS
from kadril.nn.distribution.rules.layer_call import LayerCall
from kadril.nn.distribution.rules.losses import LOSS_FUNCTIONS
from kadril.nn.distribution.rules.norms import NORMS, norm
from kadril.nn.distribution.rules.rearrange import (
    channel_shuffle,
    flip,
    pixel_shuffle,
    pixel_unshuffle,
    repeat,
    repeat_interleave,
    roll,
)
from kadril.nn.distribution.rules.reductions import REDUCTIONS
from kadril.nn.distribution.rules.selection import index_select
from kadril.nn.distribution.rules.whole import along_whole, on_replicas
from kadril.nn.distribution.window import getitem, pad

__all__ = ["FUNCTIONS", "function_name", "function_rule"]

# Names in torch, of tensors' methods, and in torch.nn.functional. With `_` at the end too, where
# there is such a method.
POINTWISE = """
    abs absolute acos add addcdiv addcmul asin atan atan2 bitwise_and bitwise_not
    bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min clip clone complex conj contiguous
    cos cosh deg2rad detach div divide double elu eq erf erfc exp exp2 expm1 fill float float_power
    floor fmod ge gelu greater gt half hardshrink hardsigmoid hardswish hardtanh hypot imag int
    isfinite isinf isnan isclose le leaky_relu lerp less log log10 log1p log2 logaddexp logical_and
    logical_not logical_or logical_xor logsigmoid logit long lt masked_fill maximum minimum mish
    mul multiply nan_to_num ne neg negative ones_like positive pow rad2deg real reciprocal relu
    relu6 remainder round rsqrt selu sigmoid sign silu sin sinh softplus softshrink softsign sqrt
    square sub subtract tan tanh tanhshrink threshold to true_divide trunc type_as where xlogy
    zeros_like
"""

OPERATORS = """
    abs add and_ eq floordiv ge gt invert le lt mod mul ne neg or_ pos pow sub truediv xor iadd isub
    imul itruediv
"""

RESHAPES = "flatten reshape squeeze unflatten unsqueeze view"
PERMUTATIONS = "permute transpose swapaxes swapdims movedim moveaxis t"

# Arguments of functions that are a layer, in their order, after the tensor.
POOL = ["kernel_size", "stride", "padding"]
MAX_POOL = [*POOL, "dilation", "ceil_mode", "return_indices"]
AVG_POOL = [*POOL, "ceil_mode", "count_include_pad"]
INTERPOLATE = ["size", "scale_factor", "mode", "align_corners", "recompute_scale_factor"]


def layer_function(layer_class: Any, names: Sequence[str]) -> Rule:
    """The rule for a function that does what a layer does.

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
            raise Refused(f"with {', '.join(unknown) or 'these arguments'} it is not known")
        return LAYERS[layer_class](LayerCall(call, layer_class(**values), call.operand))

    def rule(call: Call) -> Decision:
        operand = call.node.args[0] if call.node.args else None
        if not isinstance(operand, fx.Node):
            raise Refused("the tensor is to be its first argument")
        rest, named = tuple(call.node.args[1:]), dict(call.node.kwargs)
        decision = decide(call, values_of(call.example_of(rest), call.example_of(named)))
        if not any(isinstance(each, fx.Node) for each in flat([rest, named])):
            return decision._replace(args=(operand,), kwargs={})

        # Some arguments are computed from shapes: a layer for each of their values.
        def make(lines: Lines) -> Running:
            made: dict[str, Running] = {}

            def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                values = values_of(args, kwargs)
                if repr(values) not in made:
                    made[repr(values)] = decide(call, values).make(lines)
                return made[repr(values)](x)

            return run

        return decision._replace(make=make)

    return rule


def flat(value: Any) -> list[Any]:
    """The leaves of nested lists."""
    if isinstance(value, dict):
        return flat(list(value.values()))
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in flat(part)]
    return [value]


def dropout(layer_class: Any) -> Rule:
    """The rule for `F.dropout` and its like, which were told the mode while they were traced."""

    def rule(call: Call) -> Decision:
        operand = call.operand
        layout = call.layout(operand)
        if not call.argument(2, "training", True):
            return Decision({operand: layout}, layout, make_identity, args=(operand,), kwargs={})
        module = layer_class(call.argument(1, "p", 0.5), call.argument(3, "inplace", False))
        decision = LAYERS[layer_class](LayerCall(call, module, operand))
        return decision._replace(args=(operand,), kwargs={})

    return rule


def make_identity(lines: Lines) -> Running:
    """The identity."""
    return lambda x: x


def attribute(call: Call) -> Decision:
    """`getattr(x, name)`."""
    source, name = call.node.args
    if isinstance(source, fx.Node) and isinstance(call.layouts[source], list):
        # Of a result with names, such as `x.max(1).values`.
        results = call.shapes[source]
        (place,) = (k for k, each in enumerate(results) if each is getattr(results, str(name)))
        return as_it_is(call, {}, call.layouts[source][place])
    if name in ("dtype", "device", "ndim", "requires_grad", "is_complex"):
        return as_it_is(call, {call.operand: call.layout(call.operand)}, None)
    if name in ("T", "mT"):
        layout = call.layout(call.operand)
        return as_it_is(call, {call.operand: layout}, (*layout[:-2], layout[-1], layout[-2]))
    if name in ("real", "imag"):
        return pointwise(call)
    raise Refused(f"the attribute {name!r} of a tensor is not known")


def chunks(call: Call) -> Decision:
    """`chunk` and `split`: the dim is the third argument."""
    layout = call.layout(call.operand)
    dim = call.argument(2, "dim", 0) % len(layout)
    want = tuple(None if each == dim else axis for each, axis in enumerate(layout))
    return as_it_is(call, {call.operand: want}, [want] * len(call.result))


def for_names(names: str, rule: Rule) -> dict[Any, Rule]:
    """The rule for all functions and methods of these names."""
    found: dict[Any, Rule] = {}
    for name in names.split():
        homes = (torch, functional, torch.special)
        named = [getattr(home, each, None) for home in homes for each in (name, f"{name}_")]
        found.update({each: rule for each in named if callable(each)})  # torch.float is a dtype
        methods = [each for each in (name, f"{name}_") if hasattr(torch.Tensor, each)]
        found.update(dict.fromkeys(methods, rule))
    return found


def for_all(table: Mapping[str, Rule]) -> dict[Any, Rule]:
    """The rules of a table for names, several in a line."""
    return {
        target: rule for names in table for target, rule in for_names(names, table[names]).items()
    }


def layer_functions() -> dict[Any, Rule]:
    """Rules for pools and interpolation."""
    rules = for_names("interpolate", layer_function(nn.Upsample, INTERPOLATE))
    for num in (1, 2, 3):
        for kind, names in (("Max", MAX_POOL), ("Avg", AVG_POOL)):
            rule = layer_function(getattr(nn, f"{kind}Pool{num}d"), names)
            rules.update(for_names(f"{kind.lower()}_pool{num}d", rule))
            own = ["output_size", *(["return_indices"] if kind == "Max" else [])]
            rule = layer_function(getattr(nn, f"Adaptive{kind}Pool{num}d"), own)
            rules.update(for_names(f"adaptive_{kind.lower()}_pool{num}d", rule))
    return rules


FUNCTIONS: dict[Any, Rule] = {
    **for_names(POINTWISE, pointwise),
    **{getattr(operator, name): pointwise for name in OPERATORS.split()},
    **for_names(RESHAPES, reshape),
    **for_names(PERMUTATIONS, permute),
    **for_all({**REDUCTIONS, **EXTREMES, **NORMS, **CONTRACTIONS}),
    torch.linalg.norm: norm,
    torch.linalg.vector_norm: norm,
    **for_names("unbind", along(0)),
    **for_names("glu", along_whole(-1)),
    **for_names("cat concat concatenate", cat),
    **for_names("stack", stack),
    **for_names("chunk split", chunks),
    **for_names("expand", expand),
    **for_names("sum", summed),
    **for_names("mean", mean),
    **for_names("amax", extreme(torch.amax)),
    **for_names("amin", extreme(torch.amin)),
    functional.scaled_dot_product_attention: attention,
    **LOSS_FUNCTIONS,
    **for_names("pad", pad),
    **for_names("dropout", dropout(nn.Dropout)),
    **for_names("dropout1d", dropout(nn.Dropout1d)),
    **for_names("dropout2d", dropout(nn.Dropout2d)),
    **for_names("dropout3d", dropout(nn.Dropout3d)),
    **for_names("alpha_dropout", dropout(nn.AlphaDropout)),
    **layer_functions(),
    **FUNCTIONAL_LAYERS,
    **for_names("flip fliplr flipud", flip),
    **for_names("roll", roll),
    **for_names("index_select", index_select),
    **for_names("repeat tile", repeat),
    **for_names("repeat_interleave", repeat_interleave),
    **for_names("pixel_shuffle", pixel_shuffle),
    **for_names("pixel_unshuffle", pixel_unshuffle),
    **for_names("channel_shuffle native_channel_shuffle", channel_shuffle),
    operator.matmul: matmul,
    operator.getitem: getitem,
    operator.setitem: setitem,
    **FILLS,
    builtins.getattr: attribute,
    "dim": lambda call: as_it_is(call, {call.operand: call.layout(call.operand)}, None),
}


def function_name(node: fx.Node) -> str:
    """Name of the function, for errors."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    target: Any = node.target
    return f"{getattr(target, '__module__', '') or ''}.{getattr(target, '__name__', target)}"


def function_rule(call: Call) -> Rule:
    """The rule for a function or method.

    Raises:
        Refused: there is none.
    """
    return FUNCTIONS.get(call.node.target, on_replicas)
