"""Norms of tensors whose dims are split.

| file | has |
|---|---|
| `batch_norm.py`, `group_norm.py`, `layer_norm.py`, `rms_norm.py` | one norm each |
| `local_contrast.py` | local contrast normalisation, which needs halos |
| `partitioned_norm.py` | their base classes: agreement, plans, parameters for this worker's block |
| `standardize.py` | mean and variance over several workers, and the adjoint: the equations |

A new norm derives from a base class and the torch layer, and defines `_plan` and `_normalize`.
"""
