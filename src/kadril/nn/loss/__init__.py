"""Losses of tensors whose dims are split: one number that all workers know.

| file | has |
|---|---|
| `elementwise.py` | losses that are a sum over elements: L1, MSE, Huber, BCE, KL, Poisson |
| `classes.py` | cross entropy and negative log-likelihood, also with split classes |
| `loss_layer.py` | `LossLayer`, their base class: the sum over all workers |
| `log_softmax.py` | log-softmax over a dim that is split |

A new element-wise loss derives from `ElementwiseLoss`, and defines `_local` and `settings`.
"""
