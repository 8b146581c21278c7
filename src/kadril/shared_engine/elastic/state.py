"""State: what training has to get back after ranks changed.

save      remember it, in memory               commit = save + check_host_updates
restore   go back to what was saved            after a rank was lost
sync      take over what rank 0 has            at the start, and after ranks have met again
reset     adapt to the ranks there are         after ranks have met again
"""

from __future__ import annotations

import contextlib
import copy
import queue
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kadril.shared_engine.basics import rank
from kadril.shared_engine.elastic.interrupt import HostsUpdatedInterrupt, HostUpdateResult
from kadril.world.membership import find_membership

__all__ = ["ObjectState", "State", "all_or_nothing"]


class State:
    """Base of all states; derive from it for a kind of your own.

    Args:
        bcast_object: gives rank 0's object to all ranks.
        get_rank: rank of this process.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] | None = None,
        get_rank: Callable[[], int] | None = None,
    ) -> None:
        if bcast_object is None:
            raise TypeError("a State needs bcast_object, which gives rank 0's object to all ranks")
        self._bcast_object = bcast_object
        self._rank = rank if get_rank is None else get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []
        self._preemption_callbacks: list[Callable[[], None]] = []

    def register_preemption_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Call these, in order, after the commit that SIGTERM or SIGUSR1 asks for.

        All ranks call them at the same step: to write a checkpoint, say.
        """
        self._preemption_callbacks.extend(callbacks)

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
            SystemExit: the job was sent SIGTERM; on every rank, with code 143.
        """
        self.gather()
        self.save()
        self._check(is_saved=True)

    def check_host_updates(self) -> None:
        """See whether hosts came or went, without saving; collective.

        Raises:
            HostsUpdatedInterrupt: they did; on every rank, as rank 0's word counts for all.
            SystemExit: see `commit`.
        """
        self._check(is_saved=False)

    def _check(self, *, is_saved: bool) -> None:
        membership = find_membership()
        before = self._last_updated_timestamp
        if membership is not None:
            update = membership.take_changes()
            if update:
                # Later than any that was heard of, whatever the clocks say.
                self.on_hosts_updated(max(before + 1, time.time()), update)
        latest, changes = before, 0
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > latest:
                latest = timestamp
                changes |= update
        orders = (False, False) if membership is None else (membership.preempts, membership.leaves)
        before, latest, changes, orders = self._bcast_object((before, latest, changes, orders))
        self._last_updated_timestamp = latest
        if orders[0]:
            if membership is not None:
                membership.preempts = False
            self._commit_now(is_saved=is_saved)
            if orders[1]:
                raise SystemExit(128 + signal.SIGTERM)
        if latest > before:
            if not is_saved:
                self.gather()
            raise HostsUpdatedInterrupt(changes == HostUpdateResult.removed)

    def _commit_now(self, *, is_saved: bool) -> None:
        """Commit because a signal asks for it."""
        if not is_saved:
            self.gather()
            self.save()
        for callback in self._preemption_callbacks:
            callback()

    @property
    def always_syncs(self) -> bool:
        """Whether ranks that met again need `sync` also where all of them had the state."""
        return False

    def detach(self) -> None:
        """Stop using what is shared with the other ranks, of which one is lost; local."""

    def gather(self) -> None:
        """Learn from all ranks what only they know, before the state is saved; collective."""

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


@contextlib.contextmanager
def all_or_nothing(holders: Iterable[object]) -> Iterator[None]:
    """Put back the attributes of these objects where an error is raised.

    A rank that is lost while others take over a state must not leave one of them with parts of two
    commits. The values of the attributes are not copied, so they have to be replaced, not changed.
    """
    before = [(holder, dict(vars(holder))) for holder in holders]
    try:
        yield
    except BaseException:
        for holder, attributes in before:
            vars(holder).update(attributes)
        raise
