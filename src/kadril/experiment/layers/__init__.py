"""Layers: each plain class has a twin, derived from it, whose name ends in `Dist`.

| file | has |
|---|---|
| `layer.py` | what all layers have: `fprop`, `bprop`, weights and their update |
| `local_layer.py` | sizes of layers on images; views of distributed ones |
| `conv.py` | `ConvLayer` |
| `pooling.py` | `MaxPoolingLayer`, `L2PoolingLayer`, `AveragePoolingLayer` |
| `lcn.py` | `LCNLayer`: local contrast normalisation |
| `filtering.py` | `LocalFilteringLayer`: filters that are not shared, and their way back |
| `unshared_filters.py` | products of such filters with the fields of images |
| `fully_connected.py` | `LayerWithNoBias` |
"""

from __future__ import annotations

from kadril.experiment.layers.conv import ConvLayer, ConvLayerDist
from kadril.experiment.layers.filtering import (
    LocalDeFilteringLayer,
    LocalFilteringLayer,
    LocalFilteringLayerDist,
)
from kadril.experiment.layers.fully_connected import LayerWithNoBias, LayerWithNoBiasDist
from kadril.experiment.layers.layer import BaseLayer, WeightLayer
from kadril.experiment.layers.lcn import LCNLayer, LCNLayerDist
from kadril.experiment.layers.local_layer import LocalLayer, LocalLayerDist
from kadril.experiment.layers.pooling import (
    AveragePoolingLayer,
    AveragePoolingLayerDist,
    L2PoolingLayer,
    L2PoolingLayerDist,
    MaxPoolingLayer,
    MaxPoolingLayerDist,
    PoolingLayer,
)

__all__ = [
    "AveragePoolingLayer",
    "AveragePoolingLayerDist",
    "BaseLayer",
    "ConvLayer",
    "ConvLayerDist",
    "L2PoolingLayer",
    "L2PoolingLayerDist",
    "LCNLayer",
    "LCNLayerDist",
    "LayerWithNoBias",
    "LayerWithNoBiasDist",
    "LocalDeFilteringLayer",
    "LocalFilteringLayer",
    "LocalFilteringLayerDist",
    "LocalLayer",
    "LocalLayerDist",
    "MaxPoolingLayer",
    "MaxPoolingLayerDist",
    "PoolingLayer",
    "WeightLayer",
]
