"""Data-parallel training: an optimizer that shares gradients over ranks.

| file | what it is about |
|---|---|
| factory.py | `DistributedOptimizer` and its arguments; settings.py checks them |
| distributed.py | an optimizer object gets another class; attachment.py is what hangs on it |
| wrapped.py, delta.py | the methods of the gradient and of the Adasum optimizer |
| closure.py | loss and gradients of a closure over all ranks |
| reducer.py | one round of reductions per step |
| slot.py | one parameter; unit.py: what travels in one request |
| bucket.py, lone.py, sparse.py | many small gradients; a large one; rows of one |
| request.py | one reduction under one name; overlap.py: during the backward pass, or after it |
| plan.py | who travels with whom; naming.py: under which name |
| census.py | what came on any rank |
"""

from kadril.torch.optimizer.factory import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
