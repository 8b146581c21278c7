"""Data movement and layers."""

from __future__ import annotations

import importlib
from typing import Any

from . import loss, mixins
from .all_sum_reduce import AllSumReduce
from .batchnorm import DistributedBatchNorm
from .broadcast import Broadcast
from .conv import (
    DistributedConv1d,
    DistributedConv2d,
    DistributedConv3d,
)
from .conv_channel import (
    DistributedChannelConv1d,
    DistributedChannelConv2d,
    DistributedChannelConv3d,
)
from .conv_feature import (
    DistributedFeatureConv1d,
    DistributedFeatureConv2d,
    DistributedFeatureConv3d,
)
from .conv_general import (
    DistributedGeneralConv1d,
    DistributedGeneralConv2d,
    DistributedGeneralConv3d,
)
from .halo_exchange import HaloExchange
from .interpolate import Interpolate
from .linear import DistributedLinear
from .loss import (
    DistributedBCELoss,
    DistributedBCEWithLogitsLoss,
    DistributedKLDivLoss,
    DistributedL1Loss,
    DistributedMSELoss,
    DistributedPoissonNLLLoss,
)
from .module import Module
from .pooling import (
    DistributedAvgPool1d,
    DistributedAvgPool2d,
    DistributedAvgPool3d,
    DistributedMaxPool1d,
    DistributedMaxPool2d,
    DistributedMaxPool3d,
)
from .repartition import Repartition
from .sum_reduce import SumReduce
from .upsampling import DistributedUpsample

__all__ = [
    "AllSumReduce",
    "Broadcast",
    "DistributedAvgPool1d",
    "DistributedAvgPool2d",
    "DistributedAvgPool3d",
    "DistributedBCELoss",
    "DistributedBCEWithLogitsLoss",
    "DistributedBatchNorm",
    "DistributedChannelConv1d",
    "DistributedChannelConv2d",
    "DistributedChannelConv3d",
    "DistributedConv1d",
    "DistributedConv2d",
    "DistributedConv3d",
    "DistributedFeatureConv1d",
    "DistributedFeatureConv2d",
    "DistributedFeatureConv3d",
    "DistributedGeneralConv1d",
    "DistributedGeneralConv2d",
    "DistributedGeneralConv3d",
    "DistributedKLDivLoss",
    "DistributedL1Loss",
    "DistributedLinear",
    "DistributedMSELoss",
    "DistributedMaxPool1d",
    "DistributedMaxPool2d",
    "DistributedMaxPool3d",
    "DistributedPoissonNLLLoss",
    "DistributedUpsample",
    "HaloExchange",
    "Interpolate",
    "Module",
    "Repartition",
    "SumReduce",
    "loss",
    "mixins",
]


def __getattr__(name: str) -> Any:
    # Imported at its first use, since that warns.
    if name == "DistributedTranspose":
        return importlib.import_module(".transpose", __name__).DistributedTranspose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
