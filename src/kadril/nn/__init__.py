"""Distributed layers: ordinary layers between movements of data, on the blocks of a partition.

    model = kadril.nn.distribute(model, P_x, example)       an ordinary model, split
    kadril.nn.Conv2d(P_x, 16, 16, 3)                        or layer by layer

Parameters, `state_dict` and results are those of the ordinary layers, whatever the partition. Every
layer has the name that it has in `torch.nn`, and DistDL's beside it: `Conv2d` is
`DistributedConv2d`.

| file, folder | has |
|---|---|
| `conv/`, `pool/`, `norm/`, `dropout/`, `loss/`, `interpolation/` | one family of layers each |
| `linear.py` | the linear layer, with copies of the weight or with blocks of it |
| `locally_connected.py` | convolutions whose filters are not shared between positions |
| `embedding.py` | the embedding, whose table is whole or split by rows |
| `primitives.py` | the primitives of `kadril.ops` as modules |
| `distribution/` | `distribute`: an ordinary model on the blocks of a partition |
| `drawing/` | `draw`: a picture of who owns which block, and which messages are sent |

Shared by the layers:

| file | has |
|---|---|
| `box_layer.py` | `BoxLayer`, base of layers whose outputs are made of boxes of inputs |
| `reach.py` | which inputs the outputs of a layer are made of, along each dim |
| `linear_blocks.py` | blocks of a weight matrix, and the movements of vectors through them |
| `autocast.py`, `weight_dtype.py` | dtypes to compute in; agreement that input and weight match |
| `sharing.py` | parameters that every worker has a copy of |
| `split_state.py` | state of a layer whose weight is split, saved and loaded as a whole |
"""

from __future__ import annotations

import kadril.needs_torch  # noqa: F401 - says what to install
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
    block_of,
    distribute,
    join,
    split,
    whole_of,
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
from kadril.nn.locally_connected import DistributedLocallyConnected2d
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
from kadril.nn.norm.batch_norm import (
    DistributedBatchNorm,
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

# The names of torch.nn, for the same layers; torch has none of the two local ones.
AdaptiveAvgPool1d = DistributedAdaptiveAvgPool1d
AdaptiveAvgPool2d = DistributedAdaptiveAvgPool2d
AdaptiveAvgPool3d = DistributedAdaptiveAvgPool3d
AdaptiveMaxPool1d = DistributedAdaptiveMaxPool1d
AdaptiveMaxPool2d = DistributedAdaptiveMaxPool2d
AdaptiveMaxPool3d = DistributedAdaptiveMaxPool3d
AlphaDropout = DistributedAlphaDropout
AvgPool1d = DistributedAvgPool1d
AvgPool2d = DistributedAvgPool2d
AvgPool3d = DistributedAvgPool3d
BCELoss = DistributedBCELoss
BCEWithLogitsLoss = DistributedBCEWithLogitsLoss
BatchNorm1d = DistributedBatchNorm1d
BatchNorm2d = DistributedBatchNorm2d
BatchNorm3d = DistributedBatchNorm3d
Conv1d = DistributedConv1d
Conv2d = DistributedConv2d
Conv3d = DistributedConv3d
ConvTranspose1d = DistributedConvTranspose1d
ConvTranspose2d = DistributedConvTranspose2d
ConvTranspose3d = DistributedConvTranspose3d
CrossEntropyLoss = DistributedCrossEntropyLoss
Dropout = DistributedDropout
Dropout1d = DistributedDropout1d
Dropout2d = DistributedDropout2d
Dropout3d = DistributedDropout3d
Embedding = DistributedEmbedding
FeatureAlphaDropout = DistributedFeatureAlphaDropout
GroupNorm = DistributedGroupNorm
HuberLoss = DistributedHuberLoss
KLDivLoss = DistributedKLDivLoss
L1Loss = DistributedL1Loss
LayerNorm = DistributedLayerNorm
Linear = DistributedLinear
LocalContrastNorm2d = DistributedLocalContrastNorm2d
LocallyConnected2d = DistributedLocallyConnected2d
MSELoss = DistributedMSELoss
MaxPool1d = DistributedMaxPool1d
MaxPool2d = DistributedMaxPool2d
MaxPool3d = DistributedMaxPool3d
NLLLoss = DistributedNLLLoss
PoissonNLLLoss = DistributedPoissonNLLLoss
RMSNorm = DistributedRMSNorm
SmoothL1Loss = DistributedSmoothL1Loss
Upsample = DistributedUpsample

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AllGather",
    "AllMaxReduce",
    "AllMinReduce",
    "AllSumReduce",
    "AllToAll",
    "AlphaDropout",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Broadcast",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CrossEntropyLoss",
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
    "DistributedLocalContrastNorm2d",
    "DistributedLocallyConnected2d",
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
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "FeatureAlphaDropout",
    "Gather",
    "GroupNorm",
    "HaloExchange",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "LayerNorm",
    "Linear",
    "LocalContrastNorm2d",
    "LocallyConnected2d",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "NLLLoss",
    "PoissonNLLLoss",
    "RMSNorm",
    "ReduceScatter",
    "Repartition",
    "Scatter",
    "SmoothL1Loss",
    "SumReduce",
    "Upsample",
    "ZeroVolumeCorrector",
    "block_of",
    "distribute",
    "draw",
    "interpolate",
    "join",
    "split",
    "whole_of",
]
