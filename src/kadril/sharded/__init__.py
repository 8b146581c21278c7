"""Sharded training: optimizer state, gradients and parameters shared out over ranks.

| file | what it is about |
|---|---|
| trainer.py | `POS_Trainer`; sharded_optimizer.py: in the shape of torch's class |
| plan.py | which elements belong to which rank; rules.py: whole parameters to ranks |
| parameter_list.py | what users give as parameters; layout.py: how they lie in memory |
| shards.py | all that a rank holds; bucket.py: parameters that are reduced at once |
| memory.py | one copy of the parameters for all ranks of a host |
| gradients.py | reduced during the backward pass; courier.py: beside it; given.py: before |
| meeting.py | what ranks want to do next; agreement.py: whether they have the same |
| optimizers.py | which can be sharded, and how |
| clip.py | the norm of gradients that no rank has all of |
| grad_scaler.py | steps that are left out by all ranks; scaler_guard.py: or not at all |
| state.py | out of the optimizer and into it; stored.py: from any number of ranks |
| named_state.py | state by names of parameters; initial_state.py: before there is any |
| checkpoint.py | a directory with the parts of all ranks; shard_file.py: one of them |
| dcp.py | the same in torch's format; dcp_target.py: loading it, dcp_writer.py: writing it |
| cut_tensor.py | a tensor that a rank has a part of; boxes.py: the part as torch stores it |
| graph/ | the same inside of compiled graphs; graph_plan.py: what it sees of a trainer |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
