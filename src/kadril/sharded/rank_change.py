"""Trainers whose ranks change: what `kadril.torch.elastic` does with them.

commit_state    all ranks put their parts of the state together, in memory that outlives each
share_out       other ranks: the parameters are divided anew, and there is no state
load_commit     each rank takes its part of a state that was put together by any ranks
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from kadril.sharded.ownership.group_options import options_of
from kadril.sharded.sharded_optimizer import ShardedOptimizer
from kadril.sharded.state.committed_state import CommitRoom, CommittedState
from kadril.sharded.state.load_state import cut_state, put_state
from kadril.sharded.trainer import POS_Trainer
from kadril.world import World

__all__ = ["Sharded", "commit_state", "load_commit", "set_options", "share_out", "trainer_behind"]

Sharded: TypeAlias = POS_Trainer | ShardedOptimizer


def trainer_behind(value: Sharded) -> POS_Trainer:
    """Return the trainer that does the work."""
    return value.trainer if isinstance(value, ShardedOptimizer) else value


def commit_state(value: Sharded, room: CommitRoom) -> CommittedState:
    """Put the state of all ranks together; collective."""
    trainer = trainer_behind(value)
    return room.commit(trainer.shards, trainer.optimizer)


def share_out(value: Sharded, world: World) -> None:
    """Divide the parameters among the ranks of a world, unless they are already; collective."""
    trainer = trainer_behind(value)
    # One that was made by a process that came later is of that process alone.
    if trainer.is_closed or trainer.size != world.size:
        trainer.reopen(world)


def load_commit(
    value: Sharded, committed: CommittedState, options: Sequence[Mapping[str, Any]]
) -> None:
    """Load this rank's part of a committed state; local, on every rank.

    Args:
        value: the trainer or optimizer.
        committed: the state of all ranks, of any number.
        options: of each parameter group.
    """
    trainer = trainer_behind(value)
    groups = [options_of(group) for group in options]
    stored = committed.stored(trainer.shards, groups)
    loaded = cut_state(trainer.shards, trainer.optimizer, stored)
    put_state(trainer.optimizer, loaded, keeps_dtypes=True)
    if isinstance(value, ShardedOptimizer):
        value._receive_loaded()


def set_options(value: Sharded, options: Sequence[Mapping[str, Any]]) -> None:
    """Set the options of each parameter group."""
    for group, given in zip(value.param_groups, options, strict=True):
        group.update(options_of(given))
