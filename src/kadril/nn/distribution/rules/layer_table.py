"""The table of rules for the modules of torch: their partitioned twins, and what these need whole.

    nn.Conv2d     twin(DistributedConv2d, num_dims=[4], whole=[1])      (layers/twin_rules.py)

A module whose class is not in the table is traced into, if it is a user's; one of torch runs on
replicas, where its operands are whole. A class has to be the very one: a subclass may do something
else.
"""

from __future__ import annotations

from torch import nn

from kadril.nn.conv.layers import DistributedConv1d, DistributedConv2d, DistributedConv3d
from kadril.nn.conv.transpose import (
    DistributedConvTranspose1d,
    DistributedConvTranspose2d,
    DistributedConvTranspose3d,
)
from kadril.nn.distribution.rules.call import Refused, Rule
from kadril.nn.distribution.rules.functions.rearrange import (
    channel_shuffle,
    pixel_shuffle,
    pixel_unshuffle,
)
from kadril.nn.distribution.rules.functions.reductions import SOFTMAX_LAYERS
from kadril.nn.distribution.rules.functions.reshape import reshape
from kadril.nn.distribution.rules.layers.area_upsample import or_area
from kadril.nn.distribution.rules.layers.attention import attention_layer
from kadril.nn.distribution.rules.layers.losses import LOSS_LAYERS
from kadril.nn.distribution.rules.layers.padding import PADS
from kadril.nn.distribution.rules.layers.parametrized import (
    computed_weights,
    is_weight_hook,
    parametrized,
    plain_class,
)
from kadril.nn.distribution.rules.layers.twin_rules import (
    DistributedPReLU,
    adaptive_pool,
    along_channels,
    dropout,
    glu,
    instance_norm,
    on_blocks,
    ordinary_only,
    twin,
)
from kadril.nn.distribution.rules.whole_operands import on_replicas
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
from kadril.nn.locally_connected import DistributedLocallyConnected2d, WholeLocallyConnected2d
from kadril.nn.norm.batch_norm import (
    DistributedBatchNorm1d,
    DistributedBatchNorm2d,
    DistributedBatchNorm3d,
)
from kadril.nn.norm.group_norm import DistributedGroupNorm
from kadril.nn.norm.layer_norm import DistributedLayerNorm
from kadril.nn.norm.local_contrast import DistributedLocalContrastNorm2d
from kadril.nn.norm.rms_norm import DistributedRMSNorm
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


LAYERS: dict[type[nn.Module], Rule] = {
    **dict.fromkeys(POINTWISE, on_blocks),
    **SOFTMAX_LAYERS,
    nn.GLU: glu,
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
    # Layers that torch has not: ordinary ones are made with None for their partition.
    DistributedLocalContrastNorm2d: ordinary_only(twin(DistributedLocalContrastNorm2d, [4], [1])),
    DistributedLocallyConnected2d: ordinary_only(twin(WholeLocallyConnected2d, [4], [1])),
    nn.MultiheadAttention: attention_layer,
    **PADS,
    **LOSS_LAYERS,
}


def has_rule(module: nn.Module) -> bool:
    """Whether there is a rule for a module; parametrized ones have that of their plain class."""
    return plain_class(module) in LAYERS


def layer_rule(module: nn.Module) -> Rule:
    """Return the rule for a module; `on_replicas` where the table has none.

    Raises:
        Refused: it has hooks.
    """
    computed = computed_weights(module)
    num_hooks = len(module._forward_hooks) + len(module._backward_hooks)
    num_hooks += sum(not is_weight_hook(hook) for hook in module._forward_pre_hooks.values())
    if num_hooks:
        raise Refused("it has hooks, which its partitioned form would not have")
    rule = LAYERS.get(plain_class(module), on_replicas)
    return parametrized(rule) if computed and rule is not on_replicas else rule
