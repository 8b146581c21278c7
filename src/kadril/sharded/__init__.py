"""Sharded training: optimizer state, gradients and parameters divided among ranks.

| file, folder | what it holds |
|---|---|
| trainer.py, trainer_arguments.py | `POS_Trainer`; what it refuses to be given |
| sharded_optimizer.py | `ShardedOptimizer`: in the shape of torch's ZeroRedundancyOptimizer |
| rank_change.py | trainers of elastic jobs, whose ranks change |
| grad_scaler.py | `GradScaler`: all ranks skip a step, or none |
| dcp.py | `dcp.save`, `dcp.async_save`, `dcp.load`: torch's checkpoint format |
| cut_tensor.py | `CutTensor`: the part of a tensor that a rank has, in a `state_dict()` |
| ownership/ | which rank owns which elements, and the memory that they lie in |
| reduction/ | how gradients reach their owners |
| optimizer/ | the optimizer of this rank's pieces, and its step |
| state/ | optimizer state outside of an optimizer: this rank's, of all ranks, plain, by name |
| checkpoint/ | files: kadril's own format, and torch's |
| graph/ | the reduction of gradients inside compiled backward graphs |

    parameters --ownership--> buckets, pieces of this rank
    backward() --reduction, or graph--> gradients of this rank's pieces
    step()     --optimizer--> parameters on all ranks
    save()     --state--> --checkpoint--> files;   load() the other way
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import kadril.needs_torch  # noqa: F401 - says what to install
from kadril.sharded import graph
from kadril.sharded.sharded_optimizer import ShardedOptimizer
from kadril.sharded.trainer import POS_Trainer

if TYPE_CHECKING:
    from kadril.sharded import dcp
    from kadril.sharded.grad_scaler import GradScaler
    from kadril.sharded.graph import backward, explain, optimize_for, register_backend

__all__ = [
    "GradScaler",
    "POS_Trainer",
    "ShardedOptimizer",
    "backward",
    "dcp",
    "explain",
    "optimize_for",
    "register_backend",
]

# Imported when first used: the compiler takes seconds to load, and so do torch's checkpoints.
GRAPH_NAMES = frozenset({"backward", "explain", "optimize_for", "register_backend"})


def __getattr__(name: str) -> Any:
    if name in GRAPH_NAMES:
        return getattr(graph, name)
    if name == "dcp":
        return importlib.import_module("kadril.sharded.dcp")
    if name == "GradScaler":
        return importlib.import_module("kadril.sharded.grad_scaler").GradScaler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
