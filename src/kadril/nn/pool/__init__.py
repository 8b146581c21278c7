"""Pools of tensors whose dims are split.

| file | has |
|---|---|
| `max.py`, `avg.py` | max and average pooling |
| `pool_layer.py` | their base class: settings, and windows that match the input |
| `pool_window.py` | which inputs an output is made of along one dim, and how many they are |
| `adaptive_max.py`, `adaptive_avg.py` | adaptive max and average pooling |
| `adaptive_layer.py` | their base class: outputs of a given size |
| `adaptive_bins.py` | the bins along one dim: which inputs an output is made of |
"""
