"""Rules for modules: as they are on blocks, or as their partitioned twin in `kadril.nn`.

nn.Conv2d: twin(DistributedConv2d, num_dims=[4], whole=[1])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from kadril import ops
from kadril.nn.distribution.layout import Layout, Subgrids, without
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused, Rule
from kadril.nn.distribution.rules.functions.along_dims import MakeReduction, Reduction
from kadril.nn.distribution.rules.functions.extremes import make_first_largest
from kadril.nn.distribution.rules.functions.sums import make_sum
from kadril.nn.distribution.rules.layers.seeded_dropout import make_dropout
from kadril.nn.distribution.rules.whole_operands import ask_to_gather
from kadril.nn.norm.group_norm import DistributedGroupNorm
from kadril.partition import Partition

__all__ = [
    "DistributedPReLU",
    "adaptive_pool",
    "along_channels",
    "dropout",
    "glu",
    "instance_norm",
    "on_blocks",
    "ordinary_only",
    "twin",
]


def module_of(call: Call) -> Any:
    """Return the module that is called."""
    if call.module is None:
        raise AssertionError("rules for modules are for modules")
    return call.module


def on_blocks(call: Call) -> Decision:
    """Decide to run the module itself on blocks."""
    layout = call.layout(call.operand)
    return Decision({call.operand: layout}, layout, lambda subgrids: module_of(call))


def glu(call: Call) -> Decision:
    """Decide on `nn.GLU`: one half of a dim, which has to be whole, gates the other."""
    module = module_of(call)
    layout = call.layout(call.operand)
    want = without(layout, [module.dim % len(layout)])
    ask_to_gather(call, {call.operand: want}, "it needs the whole of a dim that is split")
    return Decision({call.operand: want}, want, lambda subgrids: module)


def along_channels(call: Call) -> Decision:
    """Decide to run the module itself where channels are whole."""
    layout = without(call.layout(call.operand), [1])
    return Decision({call.operand: layout}, layout, lambda subgrids: module_of(call))


def twin(
    twin_class: Any,
    num_dims: Sequence[int] | None = None,
    whole: Sequence[int] = (),
    adapt: Callable[[Any], nn.Module] | None = None,
) -> Rule:
    """Return the rule for modules with a partitioned twin.

    Args:
        twin_class: has `of(layer, P_x, what=)`.
        num_dims: that the input may have; any where None.
        whole: dims that have to be whole.
        adapt: from the module to one that `of` takes.
    """

    def rule(call: Call) -> Decision:
        operand, module = call.operand, module_of(call)
        layout = call.layout(operand)
        if num_dims is not None and len(layout) not in num_dims:
            dims = " or ".join(str(num) for num in num_dims)
            raise Refused(
                f"its input has {len(layout)} dims; it needs {dims}, with one for the batch"
            )
        if not isinstance(call.result, torch.Tensor):
            raise Refused("it returns more than one tensor")
        want = without(layout, [dim % len(layout) for dim in whole])
        want = call.fitting(want, call.result.shape)
        gives = (*want, *[None] * (call.result.dim() - len(want)))
        layer = module if adapt is None else adapt(module)
        return Decision(
            {operand: want}, gives, partial(make_twin, twin_class, layer, want, call.name)
        )

    return rule


def ordinary_only(rule: Rule) -> Rule:
    """Return a rule for our own layers, which refuses those that are on a partition already."""

    def for_layer(call: Call) -> Decision:
        if module_of(call).P_x is not None:
            raise Refused("it is on a partition already; make it with None for P_x")
        return rule(call)

    return for_layer


def make_twin(
    twin_class: Any, layer: nn.Module, layout: Layout, name: str, subgrids: Subgrids
) -> BlockFunction:
    """Make the twin of a module, on the subgrid of its layout."""
    made: nn.Module = twin_class.of(
        layer, subgrids.partition(layout), what=f"{name} ({twin_class.__name__})"
    )
    return made.train(layer.training)


def as_group_norm(module: Any) -> nn.Module:
    """Return an instance norm as a group norm with one group for each channel."""
    if module.track_running_stats:
        raise Refused("it keeps running statistics; only `track_running_stats=False` is supported")
    num_channels = module.num_features
    norm = nn.GroupNorm(num_channels, num_channels, module.eps, module.affine, device="meta")
    norm.weight, norm.bias = module.weight, module.bias
    return norm


def instance_norm(num_dims: int) -> Rule:
    """Return the rule for instance norms."""
    return twin(DistributedGroupNorm, [num_dims], adapt=as_group_norm)


def adaptive_pool(twin_class: Any, num_dims: int, is_mean: bool) -> Rule:
    """Return the rule for adaptive pools; those to one element are reductions over space."""
    general = twin(twin_class, [num_dims])

    def rule(call: Call) -> Decision:
        layout = call.layout(call.operand)
        dims = range(2, len(layout))
        is_total = isinstance(call.result, torch.Tensor) and all(
            size == 1 for size in call.result.shape[2:]
        )
        if not is_total or len(layout) != num_dims or all(layout[dim] is None for dim in dims):
            return general(call)
        make = partial(make_sum, is_mean=True) if is_mean else make_first_largest
        made = partial(make_pool_to_one, make, layout, call.name, module_of(call))
        return Decision({call.operand: layout}, without(layout, dims), made)

    return rule


def dropout(twin_class: Any, num_dims: Sequence[int] | None = None) -> Rule:
    """Return the rule for dropouts: replicas have to drop the same elements."""
    general = twin(twin_class, num_dims)

    def rule(call: Call) -> Decision:
        decision = general(call)
        return decision._replace(make=partial(make_dropout, decision.make), is_seeded=True)

    return rule


class PoolToOne(nn.Module):
    """An adaptive pool that leaves one element: a reduction over all of space."""

    def __init__(self, run: BlockFunction, layer: nn.Module) -> None:
        super().__init__()
        self.run = run
        self.shown = repr(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Reduce; collective over the workers that space is split over."""
        y: torch.Tensor = self.run(x)
        return y

    def extra_repr(self) -> str:
        """Show the layer that it stands for."""
        return self.shown


def make_pool_to_one(
    make: MakeReduction,
    layout: Layout,
    name: str,
    layer: nn.Module,
    subgrids: Subgrids,
) -> BlockFunction:
    """Make the reduction over space."""
    reduction = Reduction(layout, list(range(2, len(layout))), True, name)
    return PoolToOne(make(reduction, subgrids), layer)


class DistributedPReLU(nn.PReLU):
    """`torch.nn.PReLU` on blocks with all channels."""

    def __init__(self, layer: nn.PReLU, P_x: Partition) -> None:
        super().__init__(layer.num_parameters, device="meta")
        self.weight = layer.weight
        self.P_x = P_x

    @classmethod
    def of(cls, layer: nn.PReLU, P_x: Partition, *, what: str) -> DistributedPReLU:
        """Return the partitioned twin of a layer, with its own parameter."""
        return cls(layer, P_x)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Compute y = max(x, 0) + weight * min(x, 0)."""
        weight = ops.spread(self.weight, self.P_x.group, what="weight of a PReLU")
        return nn.functional.prelu(input, weight)
