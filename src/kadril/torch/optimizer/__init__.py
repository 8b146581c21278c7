"""Data-parallel training: an optimizer that shares gradients over ranks.

| file | what it is about |
|---|---|
| factory.py | `DistributedOptimizer` and its arguments; settings.py checks them |
| distributed.py | an optimizer object gets another class; attachment.py is what hangs on it |
| wrapped.py, adasum_delta.py | the methods of the gradient and of the Adasum optimizer |
| closure.py | loss and gradients of a closure over all ranks |
| reducer.py | one round of reductions per step |
| parameter_slot.py | one parameter; reduction_unit.py: gradients that travel in one request |
| bucket.py, large_gradient.py, sparse.py | many small gradients; a large one; a sparse one |
| request.py | one reduction under one name; overlap.py: during the backward pass, or after it |
| bucket_plan.py | which gradients travel together; naming.py: under which name |
| census.py | which gradients came on any rank |
| grad_scaler.py | has `torch.amp.GradScaler` look at reduced gradients |
"""

from kadril.torch.optimizer.factory import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
