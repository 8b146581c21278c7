"""The rule for attributes of tensors that are asked for in `forward`."""

from __future__ import annotations

from torch import fx

from kadril.nn.distribution.rules.call import Call, Decision, Refused
from kadril.nn.distribution.rules.functions.pointwise import as_it_is, pointwise

__all__ = ["attribute", "num_dims"]


def attribute(call: Call) -> Decision:
    """Decide on `getattr(x, name)`."""
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
    raise Refused(f"the attribute {name!r} of a tensor is not supported")


def num_dims(call: Call) -> Decision:
    """Decide on `x.dim()`."""
    return as_it_is(call, {call.operand: call.layout(call.operand)}, None)
