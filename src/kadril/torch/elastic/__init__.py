"""Training that outlives a change of its ranks.

    state = hvd.elastic.TorchState(model, optimizer, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, num_batches):
            ...
            if state.batch % 10 == 0:
                state.commit()

| file | what it is about |
|---|---|
| state.py | `State` and `ObjectState`, which are those of `kadril.shared_engine.elastic` |
| torch_state.py | `TorchState`: the same of models, optimizers, samplers |
| state_handler.py, handlers.py | handlers of one value; those of models, optimizers, samplers |
| sharded_handler.py | sharded optimizers, of which each rank has a part of the state |
| sampler.py | `ElasticSampler`: who gets which part of the data, also in the middle of an epoch |
"""

import functools
import importlib

from kadril.shared_engine.elastic.interrupt import HostsUpdatedInterrupt, HostUpdateResult
from kadril.shared_engine.elastic.runner import reset, run
from kadril.torch.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)
from kadril.torch.elastic.sampler import ElasticSampler
from kadril.torch.elastic.state import ObjectState, State
from kadril.torch.elastic.torch_state import TorchState
from kadril.world.membership import find_membership

__all__ = [
    "ElasticSampler",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "reset",
    "run",
    "set_handler_registry",
]

_membership = find_membership()
if _membership is not None:
    # The constructor of any optimizer of torch loads it, which takes 2 s of CPU.
    _membership.prepare_by(functools.partial(importlib.import_module, "torch._dynamo"))
