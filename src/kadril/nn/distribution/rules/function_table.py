"""The table of rules for functions and methods: what may be called in `forward` besides modules.

    torch.roll, x.roll        roll            (functions/rearrange.py)
    F.max_pool2d              layer_function  (layers/layer_functions.py)
    operator.getitem          getitem         (functions/slices.py)

A call that is not in the table runs on replicas, where its operands are whole (`on_replicas`).
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from kadril.nn.distribution.rules.call import Call, Rule
from kadril.nn.distribution.rules.functions.along_dims import along
from kadril.nn.distribution.rules.functions.assignment import setitem
from kadril.nn.distribution.rules.functions.attributes import attribute, num_dims
from kadril.nn.distribution.rules.functions.contractions import CONTRACTIONS, matmul
from kadril.nn.distribution.rules.functions.extremes import EXTREMES
from kadril.nn.distribution.rules.functions.factories import FILLS
from kadril.nn.distribution.rules.functions.index_select import index_select
from kadril.nn.distribution.rules.functions.pointwise import cat, pointwise, stack
from kadril.nn.distribution.rules.functions.rearrange import REARRANGEMENTS
from kadril.nn.distribution.rules.functions.reductions import REDUCTIONS
from kadril.nn.distribution.rules.functions.reshape import expand, permute, reshape
from kadril.nn.distribution.rules.functions.slices import chunks, getitem, pad
from kadril.nn.distribution.rules.functions.sums import SUMS
from kadril.nn.distribution.rules.functions.vector_norms import NORMS, norm
from kadril.nn.distribution.rules.layers.attention import attention
from kadril.nn.distribution.rules.layers.layer_functions import LAYER_FUNCTIONS
from kadril.nn.distribution.rules.layers.losses import LOSS_FUNCTIONS
from kadril.nn.distribution.rules.layers.parameter_functions import PARAMETER_FUNCTIONS
from kadril.nn.distribution.rules.whole_operands import along_whole, on_replicas

__all__ = ["FUNCTIONS", "function_name", "function_rule"]

# A name also stands for the one with `_` at its end (`relu`, `relu_`), where there is one.
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

# By names in torch, in `torch.nn.functional`, in `torch.special` and of methods.
BY_NAME: dict[str, Rule] = {
    POINTWISE: pointwise,
    "flatten reshape squeeze unflatten unsqueeze view": reshape,
    "permute transpose swapaxes swapdims movedim moveaxis t": permute,
    "expand": expand,
    "cat concat concatenate": cat,
    "stack": stack,
    "chunk split": chunks,
    "unbind": along(0),
    "glu": along_whole(-1),
    "pad": pad,
    "index_select": index_select,
    **SUMS,
    **EXTREMES,
    **REDUCTIONS,
    **NORMS,
    **CONTRACTIONS,
    **REARRANGEMENTS,
    **LAYER_FUNCTIONS,
}


def targets_of(names: str) -> list[Any]:
    """Return the functions of these names, and the names that are those of methods."""
    found: list[Any] = []
    for name in names.split():
        homes = (torch, functional, torch.special)
        named = [getattr(home, each, None) for home in homes for each in (name, f"{name}_")]
        found += [each for each in named if callable(each)]  # torch.float is a dtype
        found += [each for each in (name, f"{name}_") if hasattr(torch.Tensor, each)]
    return found


def for_names(table: Mapping[str, Rule]) -> dict[Any, Rule]:
    """Return the rules of a table whose keys are names, one or several."""
    return {target: rule for names, rule in table.items() for target in targets_of(names)}


FUNCTIONS: dict[Any, Rule] = {
    **for_names(BY_NAME),
    **{getattr(operator, name): pointwise for name in OPERATORS.split()},
    operator.matmul: matmul,
    operator.getitem: getitem,
    operator.setitem: setitem,
    builtins.getattr: attribute,
    "dim": num_dims,
    torch.linalg.norm: norm,
    torch.linalg.vector_norm: norm,
    functional.scaled_dot_product_attention: attention,
    **FILLS,
    **LOSS_FUNCTIONS,
    **PARAMETER_FUNCTIONS,
}


def function_name(node: fx.Node) -> str:
    """Return the name of a function or method, for errors."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    target: Any = node.target
    return f"{getattr(target, '__module__', '') or ''}.{getattr(target, '__name__', target)}"


def function_rule(call: Call) -> Rule:
    """Return the rule for a function or method; `on_replicas` where the table has none."""
    return FUNCTIONS.get(call.node.target, on_replicas)
