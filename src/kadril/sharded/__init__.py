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
| state.py | out of the optimizer and into it; stored.py: from any number of ranks |
| checkpoint.py | a directory with the parts of all ranks; shard_file.py: one of them |
| graph/ | the same inside of compiled graphs; graph_plan.py: what it sees of a trainer |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kadril.sharded import graph
from kadril.sharded.sharded_optimizer import ShardedOptimizer
from kadril.sharded.trainer import POS_Trainer

if TYPE_CHECKING:
    from kadril.sharded.graph import backward, explain, optimize_for, register_backend

__all__ = [
    "POS_Trainer",
    "ShardedOptimizer",
    "backward",
    "explain",
    "optimize_for",
    "register_backend",
]

# Imported when first used: the compiler takes seconds to load.
GRAPH_NAMES = frozenset({"backward", "explain", "optimize_for", "register_backend"})


def __getattr__(name: str) -> Any:
    if name in GRAPH_NAMES:
        return getattr(graph, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
