"""Start of all ranks anew: where one is killed before any of them has come to `elastic.run`.

    ranks have met --- set-up of model and data --- elastic.run: SYNCED, and ranks are replaced
                            |
                            one is killed: the others wait for it there, and nothing is lost yet

The others may notice it and fail by that before the launcher sees that it has ended.
"""

from __future__ import annotations

import math
import signal

from kadril.launch.elastic.worker_set import WorkerSet
from kadril.launch.supervision.summary import RankExit, is_echo
from kadril.launch.supervision.supervisor import LAST_WORDS

__all__ = ["FreshStart"]

# A machine that is short of memory may kill a rank each time.
MAX_FRESH_STARTS = 3

# Of a rank itself, and of a shell that has run it.
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


class FreshStart:
    """Decides whether all ranks may be started anew.

    An exception or a crash in set-up is one of the program, and would come again.

    Args:
        window: seconds after the ranks have met in which they may come to `elastic.run`. A program
            that has not done so by then does not use it, and would lose all that it has done.

    Attributes:
        is_under_way: whether the new ranks have not met yet.
        held_until: when `take_held` is due.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._met_at = math.inf
        self._num_starts = 0
        self._held: list[RankExit] = []
        self.is_under_way = False
        self.held_until = math.inf

    def note_meeting(self, now: float) -> None:
        """Note that a generation has begun."""
        self._met_at = now
        self.is_under_way = False

    def is_possible(self, workers: WorkerSet, ended: RankExit, now: float) -> bool:
        """Whether all ranks may be started anew, after this end of one of them."""
        was_killed = ended.status in KILLED and ended.failed_by_itself
        has_begun = workers.has_state or workers.is_finishing
        has_begun = has_begun or any(worker.listens for worker in workers.by_place.values())
        is_in_time = now < self._met_at + self._window
        return was_killed and not has_begun and is_in_time and self._num_starts < MAX_FRESH_STARTS

    def begin(self) -> None:
        """Note that all ranks are started anew."""
        self.is_under_way = True
        self._num_starts += 1
        self.take_held()

    def hold(self, ended: RankExit, now: float) -> bool:
        """Keep an end that may follow from that of a rank which was killed.

        Returns:
            whether it may.
        """
        if self._num_starts == MAX_FRESH_STARTS or not is_echo(ended.tail):
            return False
        self._held.append(ended)
        self.held_until = min(self.held_until, now + LAST_WORDS)
        return True

    def take_held(self) -> list[RankExit]:
        """Return the ends that were kept, and keep them no longer."""
        held, self._held, self.held_until = self._held, [], math.inf
        return held
