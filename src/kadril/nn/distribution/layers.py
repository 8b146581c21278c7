"""Rules for the modules of torch: which of them have a partitioned twin, and what it needs whole.

A module that is not in the table is refused. A class has to be the very one: a subclass may do
something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from kadril import ops
from kadril.nn.conv.layers import DistributedConv1d, DistributedConv2d, DistributedConv3d
from kadril.nn.conv.transpose import (
    DistributedConvTranspose1d,
    DistributedConvTranspose2d,
    DistributedConvTranspose3d,
)
from kadril.nn.distribution.call import Call, Decision, Refused, Rule, Running
from kadril.nn.distribution.layout import Layout, Lines, without
from kadril.nn.distribution.reduce import make_sum
from kadril.nn.distribution.reshape import reshape
from kadril.nn.distribution.rules.area import or_area
from kadril.nn.distribution.rules.attention import attention_layer
from kadril.nn.distribution.rules.extremes import make_first_largest
from kadril.nn.distribution.rules.losses import LOSS_LAYERS
from kadril.nn.distribution.rules.padding import PADS
from kadril.nn.distribution.rules.parametrized import (
    computed_weights,
    is_weight_hook,
    parametrized,
    plain_class,
)
from kadril.nn.distribution.rules.rearrange import (
    channel_shuffle,
    pixel_shuffle,
    pixel_unshuffle,
)
from kadril.nn.distribution.rules.reductions import SOFTMAX_LAYERS
from kadril.nn.distribution.rules.seeded import make_dropout
from kadril.nn.distribution.rules.whole import ask_to_gather, on_replicas
from kadril.nn.dropout.layers import (
    DistributedAlphaDropout,
    DistributedDropout,
    DistributedDropout1d,
    DistributedDropout2d,
    DistributedDropout3d,
    DistributedFeatureAlphaDropout,
)
from kadril.nn.embedding import DistributedEmbedding
from kadril.nn.interpolation.upsample import DistributedUpsample
from kadril.nn.linear import DistributedLinear
from kadril.nn.norm.batch import (
    DistributedBatchNorm1d,
    DistributedBatchNorm2d,
    DistributedBatchNorm3d,
)
from kadril.nn.norm.group import DistributedGroupNorm
from kadril.nn.norm.layer import DistributedLayerNorm
from kadril.nn.norm.rms import DistributedRMSNorm
from kadril.nn.pool.adaptive_avg import (
    DistributedAdaptiveAvgPool1d,
    DistributedAdaptiveAvgPool2d,
    DistributedAdaptiveAvgPool3d,
)
from kadril.nn.pool.adaptive_max import (
    DistributedAdaptiveMaxPool1d,
    DistributedAdaptiveMaxPool2d,
    DistributedAdaptiveMaxPool3d,
)
from kadril.nn.pool.avg import DistributedAvgPool1d, DistributedAvgPool2d, DistributedAvgPool3d
from kadril.nn.pool.max import DistributedMaxPool1d, DistributedMaxPool2d, DistributedMaxPool3d
from kadril.partition import Partition

__all__ = ["LAYERS", "has_rule", "layer_rule"]

# Their result at a position follows from their input there.
POINTWISE: list[type[nn.Module]] = [
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softshrink,
    nn.Softsign,
    nn.Tanh,
    nn.Tanhshrink,
    nn.Threshold,
]


def module_of(call: Call) -> Any:
    """The module that is called."""
    if call.module is None:
        raise AssertionError("a rule for modules is asked for modules")
    return call.module


def kept(call: Call) -> Decision:
    """The module itself, on blocks."""
    layout = call.layout(call.operand)
    return Decision({call.operand: layout}, layout, lambda lines: module_of(call))


def halves(call: Call) -> Decision:
    """`nn.GLU`: one half of a dim, which has to be whole, gates the other."""
    module = module_of(call)
    layout = call.layout(call.operand)
    want = without(layout, [module.dim % len(layout)])
    ask_to_gather(call, {call.operand: want}, "it needs the whole of a dim that is split")
    return Decision({call.operand: want}, want, lambda lines: module)


def along_channels(call: Call) -> Decision:
    """The module itself, where channels are whole."""
    layout = without(call.layout(call.operand), [1])
    return Decision({call.operand: layout}, layout, lambda lines: module_of(call))


def twin(
    twin_class: Any,
    num_dims: Sequence[int] | None = None,
    whole: Sequence[int] = (),
    adapt: Callable[[Any], nn.Module] | None = None,
) -> Rule:
    """The rule for modules with a partitioned twin.

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
            raise Refused(f"its input has {len(layout)} dims; {dims} are needed, the batch's too")
        if not isinstance(call.result, torch.Tensor):
            raise Refused("it gives more than one tensor")
        want = without(layout, [dim % len(layout) for dim in whole])
        want = call.fitting(want, call.result.shape)
        gives = (*want, *[None] * (call.result.dim() - len(want)))
        layer = module if adapt is None else adapt(module)
        return Decision(
            {operand: want}, gives, partial(make_twin, twin_class, layer, want, call.name)
        )

    return rule


def make_twin(
    twin_class: Any, layer: nn.Module, layout: Layout, name: str, lines: Lines
) -> Running:
    """The twin of a module, on the lines of its layout."""
    made: nn.Module = twin_class.of(
        layer, lines.partition(layout), what=f"{name} ({twin_class.__name__})"
    )
    return made.train(layer.training)


def as_group_norm(module: Any) -> nn.Module:
    """An instance norm as what it is without running statistics: one group for each channel."""
    if module.track_running_stats:
        raise Refused("it keeps running statistics; only `track_running_stats=False` is known")
    num_channels = module.num_features
    norm = nn.GroupNorm(num_channels, num_channels, module.eps, module.affine, device="meta")
    norm.weight, norm.bias = module.weight, module.bias
    return norm


def instance_norm(num_dims: int) -> Rule:
    """The rule for instance norms."""
    return twin(DistributedGroupNorm, [num_dims], adapt=as_group_norm)


def adaptive_pool(twin_class: Any, num_dims: int, is_mean: bool) -> Rule:
    """The rule for adaptive pools; to one element, they are reductions over all of space."""
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
    """The rule for dropouts: replicas have to drop the same elements."""
    general = twin(twin_class, num_dims)

    def rule(call: Call) -> Decision:
        decision = general(call)
        return decision._replace(make=partial(make_dropout, decision.make), is_seeded=True)

    return rule


class PoolToOne(nn.Module):
    """An adaptive pool that leaves one element: a reduction over all of space."""

    def __init__(self, run: Running, layer: nn.Module) -> None:
        super().__init__()
        self.run = run
        self.shown = repr(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Reduce; collective over the workers that space is split over."""
        y: torch.Tensor = self.run(x)
        return y

    def extra_repr(self) -> str:
        """The layer that it stands for."""
        return self.shown


def make_pool_to_one(
    make: Callable[..., Running], layout: Layout, name: str, layer: nn.Module, lines: Lines
) -> Running:
    """The reduction."""
    return PoolToOne(make(layout, list(range(2, len(layout))), True, name, lines), layer)


class DistributedPReLU(nn.PReLU):
    """`torch.nn.PReLU` on blocks with all channels."""

    def __init__(self, layer: nn.PReLU, P_x: Partition) -> None:
        super().__init__(layer.num_parameters, device="meta")
        self.weight = layer.weight
        self.P_x = P_x

    @classmethod
    def of(cls, layer: nn.PReLU, P_x: Partition, *, what: str) -> DistributedPReLU:
        """The partitioned twin of a layer, with its parameter itself."""
        return cls(layer, P_x)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """y = max(x, 0) + weight * min(x, 0)."""
        weight = ops.spread(self.weight, self.P_x.group, what="weight of a PReLU")
        return nn.functional.prelu(input, weight)


LAYERS: dict[type[nn.Module], Rule] = {
    **dict.fromkeys(POINTWISE, kept),
    **SOFTMAX_LAYERS,
    nn.GLU: halves,
    **dict.fromkeys([nn.Flatten, nn.Unflatten], reshape),
    nn.Conv1d: twin(DistributedConv1d, [3], [1]),
    nn.Conv2d: twin(DistributedConv2d, [4], [1]),
    nn.Conv3d: twin(DistributedConv3d, [5], [1]),
    nn.ConvTranspose1d: twin(DistributedConvTranspose1d, [3], [1]),
    nn.ConvTranspose2d: twin(DistributedConvTranspose2d, [4], [1]),
    nn.ConvTranspose3d: twin(DistributedConvTranspose3d, [5], [1]),
    nn.MaxPool1d: twin(DistributedMaxPool1d, [3]),
    nn.MaxPool2d: twin(DistributedMaxPool2d, [4]),
    nn.MaxPool3d: twin(DistributedMaxPool3d, [5]),
    nn.AvgPool1d: twin(DistributedAvgPool1d, [3]),
    nn.AvgPool2d: twin(DistributedAvgPool2d, [4]),
    nn.AvgPool3d: twin(DistributedAvgPool3d, [5]),
    nn.AdaptiveAvgPool1d: adaptive_pool(DistributedAdaptiveAvgPool1d, 3, True),
    nn.AdaptiveAvgPool2d: adaptive_pool(DistributedAdaptiveAvgPool2d, 4, True),
    nn.AdaptiveAvgPool3d: adaptive_pool(DistributedAdaptiveAvgPool3d, 5, True),
    nn.AdaptiveMaxPool1d: adaptive_pool(DistributedAdaptiveMaxPool1d, 3, False),
    nn.AdaptiveMaxPool2d: adaptive_pool(DistributedAdaptiveMaxPool2d, 4, False),
    nn.AdaptiveMaxPool3d: adaptive_pool(DistributedAdaptiveMaxPool3d, 5, False),
    nn.Upsample: or_area(twin(DistributedUpsample, [3, 4, 5])),
    nn.UpsamplingNearest2d: twin(DistributedUpsample, [4]),
    nn.UpsamplingBilinear2d: twin(DistributedUpsample, [4]),
    nn.BatchNorm1d: twin(DistributedBatchNorm1d, [2, 3]),
    nn.BatchNorm2d: twin(DistributedBatchNorm2d, [4]),
    nn.BatchNorm3d: twin(DistributedBatchNorm3d, [5]),
    nn.InstanceNorm1d: instance_norm(3),
    nn.InstanceNorm2d: instance_norm(4),
    nn.InstanceNorm3d: instance_norm(5),
    nn.GroupNorm: twin(DistributedGroupNorm),
    nn.LayerNorm: twin(DistributedLayerNorm),
    nn.RMSNorm: twin(DistributedRMSNorm),
    nn.Linear: twin(DistributedLinear),
    nn.Embedding: twin(DistributedEmbedding),
    nn.Dropout: dropout(DistributedDropout),
    nn.Dropout1d: dropout(DistributedDropout1d, [3]),
    nn.Dropout2d: dropout(DistributedDropout2d, [4]),
    nn.Dropout3d: dropout(DistributedDropout3d, [5]),
    nn.AlphaDropout: dropout(DistributedAlphaDropout),
    nn.FeatureAlphaDropout: dropout(DistributedFeatureAlphaDropout),
    nn.PReLU: twin(DistributedPReLU, whole=[1]),
    nn.PixelShuffle: pixel_shuffle,
    nn.PixelUnshuffle: pixel_unshuffle,
    nn.ChannelShuffle: channel_shuffle,
    nn.LocalResponseNorm: along_channels,
    nn.MultiheadAttention: attention_layer,
    **PADS,
    **LOSS_LAYERS,
}


def has_rule(module: nn.Module) -> bool:
    """Whether there is a rule for a module; parametrized ones have that of their plain class."""
    return plain_class(module) in LAYERS


def layer_rule(module: nn.Module) -> Rule:
    """The rule for a module.

    Raises:
        Refused: there is none, or it has been given hooks.
    """
    computed = computed_weights(module)
    num_hooks = len(module._forward_hooks) + len(module._backward_hooks)
    num_hooks += sum(not is_weight_hook(hook) for hook in module._forward_pre_hooks.values())
    if num_hooks:
        raise Refused("it has hooks, which its partitioned form would not have")
    rule = LAYERS.get(plain_class(module), on_replicas)
    return parametrized(rule) if computed and rule is not on_replicas else rule
