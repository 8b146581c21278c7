"""Kadril trains one model on many workers, split by batch, by space, by optimizer state.

    import kadril

    kadril.init()
    print(kadril.rank(), "of", kadril.size())
    total = kadril.allreduce(tensor)                          values of all ranks
    P_x = kadril.grid(1, 1, 2, 2)                             ranks on a grid
    layer = kadril.nn.Conv2d(P_x, 3, 8, kernel_size=3)        a layer split over it

Names and packages are loaded at their first use, so that `import kadril` takes milliseconds and
loads no torch: the launcher and the command line depend on it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kadril import ddl as ddl
    from kadril import elastic as elastic
    from kadril import errors as errors
    from kadril import experiment as experiment
    from kadril import keras as keras
    from kadril import nn as nn
    from kadril import ops as ops
    from kadril import partition as partition
    from kadril import sharded as sharded
    from kadril import tensorflow as tensorflow
    from kadril import testing as testing
    from kadril import torch as torch
    from kadril.collectives import (
        allgather,
        allreduce,
        allreduce_,
        alltoall,
        barrier,
        broadcast,
        broadcast_,
        reduce,
        reduce_scatter,
    )
    from kadril.config import Config
    from kadril.errors import (
        AlreadyInitializedError,
        CheckError,
        CheckpointError,
        ClosedError,
        ConfigError,
        DeadlockError,
        ForkedError,
        KadrilError,
        MismatchError,
        NoRoomError,
        NotInitializedError,
        PeerError,
        PeerLost,
        RendezvousError,
        Revoked,
        Stalled,
        StateError,
        TransportError,
        UnsupportedError,
        UnsupportedReductionError,
    )
    from kadril.function_job import run
    from kadril.launch import LaunchError
    from kadril.partition import grid
    from kadril.world import (
        World,
        cross_rank,
        cross_size,
        current,
        init,
        is_initialized,
        is_main,
        local_rank,
        local_size,
        rank,
        shared_empty,
        shutdown,
        size,
    )

__all__ = [
    "AlreadyInitializedError",
    "CheckError",
    "CheckpointError",
    "ClosedError",
    "Config",
    "ConfigError",
    "DeadlockError",
    "ForkedError",
    "KadrilError",
    "LaunchError",
    "MismatchError",
    "NoRoomError",
    "NotInitializedError",
    "PeerError",
    "PeerLost",
    "RendezvousError",
    "Revoked",
    "Stalled",
    "StateError",
    "TransportError",
    "UnsupportedError",
    "UnsupportedReductionError",
    "World",
    "__version__",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "cross_rank",
    "cross_size",
    "current",
    "grid",
    "init",
    "is_initialized",
    "is_main",
    "local_rank",
    "local_size",
    "rank",
    "reduce",
    "reduce_scatter",
    "run",
    "shared_empty",
    "shutdown",
    "size",
]

__version__ = "0.1.0"

# Not in `__all__`: `from kadril import *` would put `kadril.torch` in the place of torch.
_PACKAGES = frozenset(
    {
        "ddl",
        "elastic",
        "errors",
        "experiment",
        "keras",
        "nn",
        "ops",
        "partition",
        "sharded",
        "tensorflow",
        "testing",
        "torch",
    }
)

# Which framework they need.
_NEEDS = {
    "ddl": "torch",
    "experiment": "torch",
    "keras": "keras",
    "nn": "torch",
    "ops": "torch",
    "sharded": "torch",
    "tensorflow": "tensorflow",
    "torch": "torch",
}

_HOMES = {
    "kadril.collectives": (
        "allgather",
        "allreduce",
        "allreduce_",
        "alltoall",
        "barrier",
        "broadcast",
        "broadcast_",
        "reduce",
        "reduce_scatter",
    ),
    "kadril.config": ("Config",),
    "kadril.function_job": ("run",),
    "kadril.launch": ("LaunchError",),
    "kadril.partition": ("grid",),
    "kadril.world": (
        "World",
        "cross_rank",
        "cross_size",
        "current",
        "init",
        "is_initialized",
        "is_main",
        "local_rank",
        "local_size",
        "rank",
        "shared_empty",
        "shutdown",
        "size",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return importlib.import_module(f"kadril.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'kadril' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME_OF.get(name, "kadril.errors")), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    from kadril.frameworks import is_installed

    # The others say what to install, which is no AttributeError: tools that ask for every name that
    # there is, as `inspect.getmembers` does, would end by it.
    missing = {name for name, framework in _NEEDS.items() if not is_installed(framework)}
    return sorted(set(globals()) | set(__all__) | (_PACKAGES - missing))
