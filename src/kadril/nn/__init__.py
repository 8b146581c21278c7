"""Distributed layers: ordinary layers between movements of data, on the blocks of a partition.

    model = kadril.nn.distribute(model, P_x, example)       an ordinary model, split
    kadril.nn.DistributedConv2d(P_x, 16, 16, 3)             or layer by layer

Parameters, `state_dict` and results are those of the ordinary layers, whatever the partition.
"""

from __future__ import annotations

from kadril.nn.conv.layers import (
    DistributedChannelConv1d,
    DistributedChannelConv2d,
    DistributedChannelConv3d,
    DistributedConv1d,
    DistributedConv2d,
    DistributedConv3d,
    DistributedFeatureConv1d,
    DistributedFeatureConv2d,
    DistributedFeatureConv3d,
    DistributedGeneralConv1d,
    DistributedGeneralConv2d,
    DistributedGeneralConv3d,
)
from kadril.nn.conv.transpose import (
    DistributedConvTranspose1d,
    DistributedConvTranspose2d,
    DistributedConvTranspose3d,
)
from kadril.nn.distribution.distribute import (
    DistributedModel,
    DistributeError,
    distribute,
    join,
    split,
)
from kadril.nn.drawing.draw import draw
from kadril.nn.dropout.layers import (
    DistributedAlphaDropout,
    DistributedDropout,
    DistributedDropout1d,
    DistributedDropout2d,
    DistributedDropout3d,
    DistributedFeatureAlphaDropout,
)
from kadril.nn.embedding import DistributedEmbedding
from kadril.nn.interpolation.function import interpolate
from kadril.nn.interpolation.upsample import DistributedUpsample
from kadril.nn.linear import DistributedLinear
from kadril.nn.loss.classes import DistributedCrossEntropyLoss, DistributedNLLLoss
from kadril.nn.loss.elementwise import (
    DistributedBCELoss,
    DistributedBCEWithLogitsLoss,
    DistributedHuberLoss,
    DistributedKLDivLoss,
    DistributedL1Loss,
    DistributedMSELoss,
    DistributedPoissonNLLLoss,
    DistributedSmoothL1Loss,
)
from kadril.nn.norm.batch import (
    DistributedBatchNorm,
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
from kadril.nn.primitives import (
    AllGather,
    AllMaxReduce,
    AllMinReduce,
    AllSumReduce,
    AllToAll,
    Broadcast,
    Gather,
    HaloExchange,
    ReduceScatter,
    Repartition,
    Scatter,
    SumReduce,
    ZeroVolumeCorrector,
)

__all__ = [
    "AllGather",
    "AllMaxReduce",
    "AllMinReduce",
    "AllSumReduce",
    "AllToAll",
    "Broadcast",
    "DistributeError",
    "DistributedAdaptiveAvgPool1d",
    "DistributedAdaptiveAvgPool2d",
    "DistributedAdaptiveAvgPool3d",
    "DistributedAdaptiveMaxPool1d",
    "DistributedAdaptiveMaxPool2d",
    "DistributedAdaptiveMaxPool3d",
    "DistributedAlphaDropout",
    "DistributedAvgPool1d",
    "DistributedAvgPool2d",
    "DistributedAvgPool3d",
    "DistributedBCELoss",
    "DistributedBCEWithLogitsLoss",
    "DistributedBatchNorm",
    "DistributedBatchNorm1d",
    "DistributedBatchNorm2d",
    "DistributedBatchNorm3d",
    "DistributedChannelConv1d",
    "DistributedChannelConv2d",
    "DistributedChannelConv3d",
    "DistributedConv1d",
    "DistributedConv2d",
    "DistributedConv3d",
    "DistributedConvTranspose1d",
    "DistributedConvTranspose2d",
    "DistributedConvTranspose3d",
    "DistributedCrossEntropyLoss",
    "DistributedDropout",
    "DistributedDropout1d",
    "DistributedDropout2d",
    "DistributedDropout3d",
    "DistributedEmbedding",
    "DistributedFeatureAlphaDropout",
    "DistributedFeatureConv1d",
    "DistributedFeatureConv2d",
    "DistributedFeatureConv3d",
    "DistributedGeneralConv1d",
    "DistributedGeneralConv2d",
    "DistributedGeneralConv3d",
    "DistributedGroupNorm",
    "DistributedHuberLoss",
    "DistributedKLDivLoss",
    "DistributedL1Loss",
    "DistributedLayerNorm",
    "DistributedLinear",
    "DistributedMSELoss",
    "DistributedMaxPool1d",
    "DistributedMaxPool2d",
    "DistributedMaxPool3d",
    "DistributedModel",
    "DistributedNLLLoss",
    "DistributedPoissonNLLLoss",
    "DistributedRMSNorm",
    "DistributedSmoothL1Loss",
    "DistributedUpsample",
    "Gather",
    "HaloExchange",
    "ReduceScatter",
    "Repartition",
    "Scatter",
    "SumReduce",
    "ZeroVolumeCorrector",
    "distribute",
    "draw",
    "interpolate",
    "join",
    "split",
]
