"""Handler of an optimizer of which each rank has a part of the state.

    commit    all parts are put together in memory that the ranks share (committed_state.py)
    restore   that becomes what counts; nothing is loaded while the ranks are apart
    sync      the parameters are shared out anew, and each rank loads its part of what rank 0 has

Rank 0 has the whole of its last commit, whoever has died since; so its word counts for all, as it
does for every other part of a state.
"""

from __future__ import annotations

import copy
from typing import Any

from kadril import world as worlds
from kadril.errors import StateError, UnsupportedError
from kadril.sharded.ownership.dedicated_transport import dedicated_transport
from kadril.sharded.ownership.group_options import group_options
from kadril.sharded.rank_change import (
    Sharded,
    commit_state,
    load_commit,
    set_options,
    share_out,
    trainer_behind,
)
from kadril.sharded.state.committed_state import CommitRoom, CommittedState
from kadril.torch.elastic.state_handler import StateHandler
from kadril.torch.objects import broadcast_object
from kadril.world import World

__all__ = ["ShardedStateHandler"]


class ShardedStateHandler(StateHandler):
    """Takes care of a `POS_Trainer` or a `ShardedOptimizer`.

    Args:
        value: the trainer or optimizer.
    """

    always_syncs = True

    value: Sharded

    def __init__(self, value: Sharded) -> None:
        self._latest: CommittedState | None = None  # what `sync` would load
        self._latest_step = 0  # of the trainer, when that was the present state
        self._room: CommitRoom | None = None
        self._world: World | None = None  # that the room is of
        super().__init__(value)

    def set_value(self, value: Any) -> None:
        """Refuse another optimizer.

        Raises:
            UnsupportedError: it is another one.
        """
        if value is not self.value:
            raise UnsupportedError(
                "the sharded optimizer of a state cannot be replaced by another one: ranks that"
                " come later would not have it. Make another state"
            )

    def gather(self) -> None:
        """Put the state of all ranks together, in memory that outlives each; collective."""
        self._set_latest(commit_state(self.value, self._open_room()))

    def detach(self) -> None:
        """Give the parameters back: somebody may have been lost while writing to them."""
        trainer_behind(self.value).let_go()

    def save(self) -> None:
        """Remember what was gathered, and the options.

        Raises:
            StateError: there was a step since then.
        """
        if self._latest is not None and self._latest_step != trainer_behind(self.value).num_steps:
            raise StateError(
                "save() does not ask the other ranks for their parts of a sharded optimizer; call"
                " commit(), on every rank"
            )
        self._saved = self._latest
        self._saved_options = copy.deepcopy(group_options(self.value))

    def restore(self) -> None:
        """Go back to what was saved; its state is loaded when the ranks have met again."""
        self._set_latest(self._saved)
        set_options(self.value, copy.deepcopy(self._saved_options))
        if self._latest is not None and not trainer_behind(self.value).is_closed:
            load_commit(self.value, self._latest, self._saved_options)

    def sync(self) -> None:
        """Share out the parameters and the state of rank 0 among the ranks there are; collective.

        Raises:
            StateError: a rank was lost before the first commit, and with it what was loaded before.
        """
        trainer = trainer_behind(self.value)
        had_state = bool(trainer.state)
        share_out(self.value, worlds.current())
        taken = self._open_room().take_over(self._latest)
        options = broadcast_object(
            group_options(self.value), name="elastic.sharded", allow_pickle=True
        )
        if taken is not None:
            load_commit(self.value, taken, options)
            self._set_latest(taken)
        elif had_state and not trainer.state:
            raise StateError(
                "a rank was lost before the first commit, and with it a part of the state that the"
                " optimizer had: it was loaded before. Start the job again"
            )
        else:
            set_options(self.value, options)
            self.gather()
        self.save()

    def _set_latest(self, committed: CommittedState | None) -> None:
        self._latest = committed
        self._latest_step = trainer_behind(self.value).num_steps

    def _open_room(self) -> CommitRoom:
        """Return where the present world commits; collective when it is the first time."""
        world = worlds.current()
        if self._room is None or self._world is not world:
            transport = dedicated_transport(world)
            world.on_close(transport.close)
            self._room, self._world = CommitRoom(transport), world
        return self._room
