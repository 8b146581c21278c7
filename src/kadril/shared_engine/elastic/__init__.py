"""Training that outlives a change of its ranks: what all front ends have in common.

| file | what it is about |
|---|---|
| `state.py` | `State`: what is saved, restored, and brought to all ranks; `ObjectState` |
| `runner.py` | `run`: again after a rank was lost, or hosts came or went |
| `division.py` | which samples of an epoch are left, after ranks changed |
| `interrupt.py` | `HostsUpdatedInterrupt` |
| `preemption.py` | SIGTERM and SIGUSR1: a commit at the same step on all ranks |
"""

from kadril.shared_engine.elastic.interrupt import HostsUpdatedInterrupt, HostUpdateResult
from kadril.shared_engine.elastic.runner import reset, run
from kadril.shared_engine.elastic.state import ObjectState, State

__all__ = [
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "reset",
    "run",
]
