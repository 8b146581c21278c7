"""State: what training has to get back after ranks changed.

save      remember it, in memory               commit = save + check_host_updates
restore   go back to what was saved            after a rank was lost
sync      take over what rank 0 has            at the start, and after ranks have met again
reset     adapt to the ranks there are         after ranks have met again
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Iterable
from typing import Any

from kadril.torch.basics import rank
from kadril.torch.elastic.interrupt import HostsUpdatedInterrupt, HostUpdateResult
from kadril.torch.objects import broadcast_object

__all__ = ["ObjectState", "State"]


class State:
    """What all states have in common; derive from it for a kind of your own.

    Args:
        bcast_object: gives rank 0's object to all ranks.
        get_rank: rank of this process.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] | None = None,
        get_rank: Callable[[], int] | None = None,
    ) -> None:
        self._bcast_object = broadcast_object if bcast_object is None else bcast_object
        self._rank = rank if get_rank is None else get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Call these, in order, whenever ranks have met again: to scale a learning rate, say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Ranks have met again: adapt, and tell those who want to know."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int = HostUpdateResult.added) -> None:
        """Note that hosts came or went; from any thread. The next check raises, on every rank.

        Args:
            timestamp: when; only a later one than the last counts.
            update_res: what changed, of `HostUpdateResult`.
        """
        self._host_messages.put((timestamp, int(update_res)))

    def commit(self) -> None:
        """Save, and see whether hosts came or went; collective.

        How often is a trade: a lost rank costs what was done since.

        Raises:
            HostsUpdatedInterrupt: they did; on every rank.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """See whether hosts came or went, without saving; collective.

        Raises:
            HostsUpdatedInterrupt: they did; on every rank, as rank 0's word counts for all.
        """
        before = self._last_updated_timestamp
        latest, changes = before, 0
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > latest:
                latest = timestamp
                changes |= update
        before, latest, changes = self._bcast_object((before, latest, changes))
        self._last_updated_timestamp = latest
        if latest > before:
            raise HostsUpdatedInterrupt(changes == HostUpdateResult.removed)

    def save(self) -> None:
        """Remember the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was saved."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over the state of rank 0, and save it; collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to the ranks there are."""


class ObjectState(State):
    """State made of plain values, which are its attributes.

        state = ObjectState(epoch=0, best=None)
        state.epoch += 1

    Args:
        bcast_object: see `State`.
        get_rank: see `State`.
        **kwargs: names and first values; anything that can be copied and pickled.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state: dict[str, Any] = copy.deepcopy(kwargs)
        self._set_values(kwargs)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _set_values(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def save(self) -> None:
        """Remember a copy of every value, so that changes within a value are undone too."""
        self._saved_state = copy.deepcopy(self._values())

    def restore(self) -> None:
        """Go back to what was saved."""
        self._set_values(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        """Take over the values of rank 0, and save them; collective."""
        if self._saved_state:
            self._set_values(self._bcast_object(self._values()))
            ObjectState.save(self)
